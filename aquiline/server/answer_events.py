"""The events of one answer, while it grows in the engine."""

from __future__ import annotations

from collections.abc import Callable

from aquiline.server.answers import Answer, EventWriter
from aquiline.server.submission import Submission


class AnswerEvents:
    """What `EventPump` sends for one request; see `EventSource`."""

    __slots__ = ("_has_begun", "_num_unfinished", "_submission", "_writer")

    def __init__(self, answer: Answer, submission: Submission) -> None:
        self._writer = EventWriter(answer)
        self._submission = submission
        self._num_unfinished = len(submission.nums_answers)
        self._has_begun = False

    @property
    def is_over(self) -> bool:
        """Whether every prompt is answered and told."""
        return not self._num_unfinished

    @property
    def has_failed(self) -> bool:
        """Whether `take` will raise."""
        return self._submission.has_failed

    def subscribe(self, on_news: Callable[[], None]) -> None:
        """Have `on_news` called whenever the engine has told something."""
        self._submission.on_news = on_news

    def take(self) -> bytes:
        """Events that tell what is new.

        Raises:
            AquilineError: the engine failed, or the server ended the request.
        """
        events = [] if self._has_begun else self._writer.opening()
        self._has_begun = True
        for progress in self._submission.take():
            events += self._writer.advance(progress)
            self._num_unfinished -= progress.output.finished
        if not self._num_unfinished:
            events += self._writer.closing()
        return b"".join(events)
