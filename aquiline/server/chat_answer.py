"""Chat answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aquiline.request import CompletionOutput
from aquiline.server.answers import AnswerHead, AnswerOptions, Json, new_id, spell_finish
from aquiline.server.figures import runs_of
from aquiline.server.submission import Progress
from aquiline.server.text_deltas import TextDelta, TextDeltas
from aquiline.server.token_texts import chat_logprobs, prompt_logprobs
from aquiline.server.tools.events import CallEvent, ContentEvent, ToolEvent, ToolParser
from aquiline.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatPlan:
    """How the choices of a chat answer are written.

    Attributes:
        new_parser: makes the tool parser of one choice; None leaves the text alone.
        has_one_call: calls after the first are left out.
    """

    head: AnswerHead
    options: AnswerOptions
    tokenizer: Tokenizer
    prompt_token_ids: tuple[int, ...]
    num_answers: int
    skips_special_tokens: bool
    new_parser: Callable[[], ToolParser] | None = None
    has_one_call: bool = False


@dataclass(slots=True)
class _Choice:
    """One choice while it grows."""

    deltas: TextDeltas
    parser: ToolParser | None
    has_calls: bool = False


@dataclass
class _Message:
    """The sum of the deltas of one choice."""

    content: str = ""
    tool_calls: list[Json] = field(default_factory=list)
    logprobs: list[Json] | None = None

    def add(self, delta: Json) -> None:
        self.content += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                function = {"name": call["function"]["name"], "arguments": ""}
                self.tool_calls.append({"id": call["id"], "type": "function", "function": function})
            self.tool_calls[call["index"]]["function"]["arguments"] += call["function"].get("arguments", "")

    @property
    def body(self) -> Json:
        message: Json = {"role": "assistant", "content": self.content, "refusal": None}
        if self.tool_calls:
            message |= {"content": self.content or None, "tool_calls": self.tool_calls}
        return message


class ChatAnswer:
    """Writes the choices of a chat answer."""

    __slots__ = ("_choices", "_plan", "head", "options")

    def __init__(self, plan: ChatPlan) -> None:
        self.head = plan.head
        self.options = plan.options
        self._plan = plan
        self._choices = [self._new_choice() for _ in range(plan.num_answers)]

    def _new_choice(self) -> _Choice:
        plan = self._plan
        decoder = None
        if plan.options.is_single:
            decoder = plan.tokenizer.new_decoder(plan.prompt_token_ids, plan.skips_special_tokens)
        parser = None if plan.new_parser is None else plan.new_parser()
        return _Choice(TextDeltas(decoder, plan.options.is_single), parser)

    def opening(self) -> list[Json]:
        """The role of every choice."""
        delta = {"role": "assistant", "content": ""}
        return [
            {"index": index, "delta": dict(delta), "logprobs": None, "finish_reason": None}
            for index in range(self._plan.num_answers)
        ]

    def choices(self, news: Progress) -> list[Json]:
        """What is new, one choice per event."""
        grown = []
        for completion in news.output.outputs:
            pieces = self._advance(completion)
            if pieces and self.options.wants_aquiline:
                pieces[-1]["aquiline"] = {"runs": runs_of(news.runs[completion.index])}
            grown += pieces
        return grown

    def whole_choices(self, final: Progress) -> list[Json]:
        """Every choice as a message."""
        choices = []
        for completion in final.output.outputs:
            message = _Message()
            logprobs: list[Json] = []
            pieces = self._advance(completion)
            for piece in pieces:
                message.add(piece["delta"])
                logprobs += (piece["logprobs"] or {"content": []})["content"]
            choice = {
                "index": completion.index,
                "message": message.body,
                "logprobs": None if completion.logprobs is None else {"content": logprobs, "refusal": None},
                "finish_reason": pieces[-1]["finish_reason"],
                "stop_reason": completion.stop_reason,
            }
            choices.append(choice | self._extras(final, completion))
        return choices

    def _extras(self, final: Progress, completion: CompletionOutput) -> Json:
        extras: Json = {}
        if self.options.wants_token_ids:
            extras |= {"token_ids": list(completion.token_ids), "prompt_token_ids": list(self._plan.prompt_token_ids)}
        if self.options.wants_prompt_logprobs and final.output.prompt_logprobs is not None:
            extras["prompt_logprobs"] = prompt_logprobs(self._plan.tokenizer, final.output.prompt_logprobs)
        if self.options.wants_aquiline:
            extras["aquiline"] = {"runs": runs_of(final.runs[completion.index])}
        return extras

    def _advance(self, completion: CompletionOutput) -> list[Json]:
        choice = self._choices[completion.index]
        return [self._write(choice, completion.index, piece) for piece in choice.deltas.advance(completion)]

    def _write(self, choice: _Choice, index: int, piece: TextDelta) -> Json:
        if choice.parser is None:
            delta: Json = {"content": piece.text} if piece.text or piece.finish_reason is None else {}
        else:
            events = choice.parser.push(piece.text)
            if piece.finish_reason is not None:
                events = [*events, *choice.parser.finish()]
            if self._plan.has_one_call:
                events = [event for event in events if isinstance(event, ContentEvent) or event.index == 0]
            choice.has_calls = choice.has_calls or any(isinstance(event, CallEvent) for event in events)
            delta = _event_delta(events)
        written: Json = {"index": index, "delta": delta, "logprobs": None}
        if piece.logprobs is not None:
            written["logprobs"] = {"content": chat_logprobs(self._plan.tokenizer, piece.logprobs), "refusal": None}
        written["finish_reason"] = spell_finish(piece.finish_reason, choice.has_calls)
        if piece.finish_reason is not None:
            written["stop_reason"] = piece.stop_reason
        if self.options.wants_token_ids:
            written["token_ids"] = list(piece.token_ids)
        return written


def _event_delta(events: list[ToolEvent]) -> dict[str, Any]:
    content = "".join(event.text for event in events if isinstance(event, ContentEvent))
    calls: dict[int, Json] = {}
    for event in events:
        if isinstance(event, CallEvent):
            function = {"name": event.name, "arguments": ""}
            calls[event.index] = {"index": event.index, "id": new_id("call"), "type": "function", "function": function}
        elif not isinstance(event, ContentEvent):
            call = calls.setdefault(event.index, {"index": event.index, "function": {"arguments": ""}})
            call["function"]["arguments"] += event.text
    delta: Json = {"content": content} if content else {}
    return delta | {"tool_calls": list(calls.values())} if calls else delta
