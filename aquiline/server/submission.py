"""What the prompts of one HTTP request have come to, on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aquiline.request import CompletionOutput, RequestOutput
from aquiline.speculation_figures import SpeculationFigures


@dataclass(slots=True)
class Run:
    """What one step added to one answer.

    Attributes:
        num_tokens: committed tokens.
        num_accepted: those of them that the draft had guessed; the others were drawn by the target alone.
        num_draft_tokens: tokens that the draft had guessed.
    """

    num_tokens: int
    num_accepted: int
    num_draft_tokens: int


@dataclass(slots=True)
class Progress:
    """The newest state of one prompt, and the runs that led to it since the reader last looked.

    Attributes:
        runs: of each answer, oldest first.
    """

    index: int
    output: RequestOutput
    runs: Sequence[Sequence[Run]]


NO_FIGURES = SpeculationFigures(0, 0, 0, 0, 0.0)


class Submission:
    """The prompts of one HTTP request.

    Args:
        nums_answers: how many answers each prompt is to get.
        keeps_runs: `Progress` is to tell the runs as well.

    Attributes:
        request_ids: the engine's names of the prompts, in order.
        first_token_at: `time.perf_counter` when the first token came; None before.
        timer: ends the submission when its time is over.
        on_news: called whenever there is something to `take`.
    """

    __slots__ = (
        "_changed",
        "_error",
        "_keeps_runs",
        "_latest",
        "_news",
        "_num_accepted",
        "_num_finished",
        "_runs",
        "_seen",
        "first_token_at",
        "nums_answers",
        "on_news",
        "request_ids",
        "submitted_at",
        "timer",
    )

    def __init__(self, nums_answers: Sequence[int], keeps_runs: bool = True) -> None:
        self.nums_answers = tuple(nums_answers)
        self.request_ids: list[str] = []
        self.submitted_at = time.perf_counter()
        self.first_token_at: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.on_news: Callable[[], None] | None = None
        self._num_accepted = 0
        self._num_finished = 0
        self._latest: dict[int, RequestOutput] = {}
        self._seen: dict[tuple[int, int], SpeculationFigures] = {}
        self._keeps_runs = keeps_runs
        self._runs: dict[int, list[list[Run]]] = {
            index: [[] for _ in range(count)] for index, count in enumerate(self.nums_answers)
        }
        self._changed: set[int] = set()
        self._error: Exception | None = None
        self._news = asyncio.Event()

    async def accepted(self) -> None:
        """Wait until the engine has taken every prompt.

        Raises:
            AquilineError: it has refused one.
        """
        while self._num_accepted < len(self.nums_answers) and self._error is None:
            self._news.clear()
            await self._news.wait()
        if self._error is not None:
            raise self._error

    def take(self) -> list[Progress]:
        """What has changed since the last look.

        Raises:
            AquilineError: the engine failed, or the server ended the request.
        """
        if self._error is not None:
            raise self._error
        taken = [Progress(index, self._latest[index], self._take_runs(index)) for index in sorted(self._changed)]
        self._changed.clear()
        return taken

    async def finished(self) -> list[Progress]:
        """The final state of every prompt, with all its runs.

        Raises:
            AquilineError: as `progress` does.
        """
        while not self.is_complete and self._error is None:
            self._news.clear()
            await self._news.wait()
        if self._error is not None:
            raise self._error
        return [Progress(index, self._latest[index], self._take_runs(index)) for index in range(len(self.nums_answers))]

    @property
    def outputs(self) -> list[RequestOutput]:
        """The newest state of every prompt of which anything is known."""
        return [self._latest[index] for index in sorted(self._latest)]

    def accept(self) -> None:
        """The engine has taken one of the prompts."""
        self._num_accepted += 1
        self._news.set()

    def update(self, index: int, output: RequestOutput) -> list[Run]:
        """Prompt number `index` has come to `output`; returns what that adds to its answers."""
        if self.first_token_at is None:
            self.first_token_at = time.perf_counter()
        self._latest[index] = output
        self._changed.add(index)
        self._num_finished += output.finished
        added = []
        for completion in output.outputs:
            run = self._run_to(index, completion)
            if run is not None:
                added.append(run)
                if self._keeps_runs:
                    self._runs[index][completion.index].append(run)
        self._tell()
        return added

    def _tell(self) -> None:
        self._news.set()
        if self.on_news is not None:
            self.on_news()

    def _run_to(self, index: int, completion: CompletionOutput) -> Run | None:
        """What led from the last state of an answer to this one; None when nothing did."""
        now = completion.speculation
        before = self._seen.get((index, completion.index), NO_FIGURES)
        run = Run(
            now.num_committed_tokens - before.num_committed_tokens,
            now.num_accepted_draft_tokens - before.num_accepted_draft_tokens,
            now.num_draft_tokens - before.num_draft_tokens,
        )
        if not (run.num_tokens or run.num_accepted or run.num_draft_tokens):
            return None
        self._seen[index, completion.index] = now
        return run

    @property
    def is_complete(self) -> bool:
        """Whether every prompt is answered."""
        return self._num_finished == len(self.nums_answers)

    @property
    def has_failed(self) -> bool:
        """Whether `take` will raise."""
        return self._error is not None

    def fail(self, error: Exception) -> None:
        """End everything with `error`, unless something failed before."""
        if self._error is None:
            self._error = error
            self._tell()

    def _take_runs(self, index: int) -> list[list[Run]]:
        taken = self._runs[index]
        if not self._keeps_runs:
            return taken
        self._runs[index] = [[] for _ in taken]
        return taken
