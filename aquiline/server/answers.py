"""What chat and text answers have in common: one answer as whole or as events, from the same deltas."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from aquiline.request import FinishReason, RequestOutput
from aquiline.server.figures import aquiline_of, usage_of
from aquiline.server.sse import event, on_one_line
from aquiline.server.submission import Progress

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every event and every whole answer says first.

    Attributes:
        kind: `chat.completion` or `text_completion`.
        chunk_kind: the same of an event.
    """

    id: str
    kind: str
    chunk_kind: str
    model: str
    fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: Sequence[Json]) -> Json:
        return self._json(self.kind, choices)

    def chunk(self, choices: Sequence[Json]) -> Json:
        return self._json(self.chunk_kind, choices)

    def _json(self, kind: str, choices: Sequence[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": list(choices),
        }


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """Which extras an answer has.

    Attributes:
        drops_output: nothing but the prompt is wanted, see `completion_params`.
    """

    wants_stream_usage: bool
    wants_aquiline: bool
    wants_token_ids: bool
    wants_prompt_logprobs: bool
    is_single: bool
    drops_output: bool = False


class Answer(Protocol):
    """Turns outputs of the engine into what a client reads."""

    @property
    def head(self) -> AnswerHead: ...

    @property
    def options(self) -> AnswerOptions: ...

    def opening(self) -> list[Json]:
        """Choices of events that do not wait for the first token."""

    def choices(self, news: Progress) -> list[Json]:
        """Choices of the next events."""

    def whole_choices(self, final: Progress) -> list[Json]:
        """Choices of the whole answer."""


class EventWriter:
    """The events of one answer, as bytes; all that they have in common is written once."""

    __slots__ = ("_after", "_answer", "_before", "_empty", "_latest")

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._latest: dict[int, RequestOutput] = {}
        self._empty = answer.head.chunk([]) | ({"usage": None} if answer.options.wants_stream_usage else {})
        before, _, after = event(self._empty).rpartition(b'"choices":[]')
        self._before, self._after = before + b'"choices":[', b"]" + after

    def opening(self) -> list[bytes]:
        """Events that are sent before anything is computed."""
        return [self._before + on_one_line(choice) + self._after for choice in self._answer.opening()]

    def advance(self, news: Progress) -> list[bytes]:
        """Events that tell what is new."""
        self._latest[news.index] = news.output
        return [self._before + on_one_line(choice) + self._after for choice in self._answer.choices(news)]

    def closing(self) -> list[bytes]:
        """An event after the last token with usage and figures, if they were asked for."""
        options = self._answer.options
        outputs = [self._latest[index] for index in sorted(self._latest)]
        extras: Json = {}
        if options.wants_aquiline:
            extras["aquiline"] = aquiline_of(outputs)
        if options.wants_stream_usage:
            extras["usage"] = usage_of(outputs, options.drops_output)
        return [event(self._empty | extras)] if extras else []


def whole_answer(answer: Answer, final: Sequence[Progress]) -> Json:
    """The answer as one object."""
    outputs = [progress.output for progress in final]
    body = answer.head.whole([choice for progress in final for choice in answer.whole_choices(progress)])
    body["usage"] = usage_of(outputs, answer.options.drops_output)
    if answer.options.wants_aquiline:
        body["aquiline"] = aquiline_of(outputs)
    return body


def new_id(prefix: str) -> str:
    """A name that nobody can guess."""
    return f"{prefix}-{secrets.token_hex(16)}"


def spell_finish(reason: FinishReason | None, has_calls: bool = False) -> str | None:
    """A finish reason in OpenAI's words."""
    if reason is FinishReason.STOP and has_calls:
        return "tool_calls"
    return None if reason is None else str(reason)
