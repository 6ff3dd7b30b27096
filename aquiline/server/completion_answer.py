"""Answers to text completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aquiline.request import CompletionOutput, FinishReason, TokenLogprob
from aquiline.server.answers import AnswerHead, AnswerOptions, Json, spell_finish
from aquiline.server.figures import runs_of
from aquiline.server.submission import Progress
from aquiline.server.text_deltas import TextDelta, TextDeltas
from aquiline.server.token_texts import completion_logprobs, prompt_logprobs
from aquiline.tokenizer import Tokenizer


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as text, as far as it is known or wanted, and as tokens."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class CompletionPlan:
    """How the choices of a completion are written; prompt p has the choices p * num_answers and on."""

    head: AnswerHead
    options: AnswerOptions
    tokenizer: Tokenizer
    prompts: Sequence[EncodedPrompt]
    num_answers: int
    skips_special_tokens: bool
    wants_logprobs: bool
    is_echoed: bool


@dataclass
class _Sum:
    """The sum of the deltas of one choice."""

    text: str = ""
    logprobs: dict[str, list[object]] = field(default_factory=dict)

    def add(self, piece: Json) -> None:
        self.text += piece["text"]
        for name, values in (piece["logprobs"] or {}).items():
            self.logprobs.setdefault(name, []).extend(values)


class CompletionAnswer:
    """Writes the choices of a text completion."""

    def __init__(self, plan: CompletionPlan) -> None:
        self.head = plan.head
        self.options = plan.options
        self._plan = plan
        needs_decoder = plan.options.is_single or plan.wants_logprobs
        self._deltas: dict[int, TextDeltas] = {}
        for index, prompt in enumerate(plan.prompts):
            for place in range(plan.num_answers):
                decoder = None
                if needs_decoder:
                    decoder = plan.tokenizer.new_decoder(prompt.token_ids, plan.skips_special_tokens)
                self._deltas[index * plan.num_answers + place] = TextDeltas(decoder, plan.options.is_single)
        self._has_begun: set[int] = set()

    def opening(self) -> list[Json]:
        """Nothing; an echoed prompt comes with the first token, which its log-probabilities wait for."""
        return []

    def choices(self, news: Progress) -> list[Json]:
        """What is new, one choice per event."""
        grown = []
        for completion in news.output.outputs:
            pieces = self._advance(news, completion)
            if self.options.wants_aquiline and pieces:
                pieces[-1]["aquiline"] = {"runs": runs_of(news.runs[completion.index])}
            grown += pieces
        return grown

    def whole_choices(self, final: Progress) -> list[Json]:
        """Every choice with all its text."""
        choices = []
        for completion in final.output.outputs:
            total = _Sum()
            pieces = self._advance(final, completion)
            for piece in pieces:
                total.add(piece)
            choice = {
                "index": pieces[-1]["index"],
                "text": total.text,
                "logprobs": total.logprobs if self._plan.wants_logprobs else None,
                "finish_reason": pieces[-1]["finish_reason"],
                "stop_reason": pieces[-1]["stop_reason"],
            }
            choices.append(choice | self._extras(final, completion))
        return choices

    def _extras(self, final: Progress, completion: CompletionOutput) -> Json:
        extras: Json = {}
        if self.options.wants_token_ids:
            kept = () if self.options.drops_output else completion.token_ids
            extras = {"token_ids": list(kept), "prompt_token_ids": list(final.output.prompt_token_ids)}
        if self.options.wants_prompt_logprobs and final.output.prompt_logprobs is not None:
            extras["prompt_logprobs"] = prompt_logprobs(self._plan.tokenizer, final.output.prompt_logprobs)
        if self.options.wants_aquiline:
            extras["aquiline"] = {"runs": runs_of(final.runs[completion.index])}
        return extras

    def _advance(self, news: Progress, completion: CompletionOutput) -> list[Json]:
        index = news.index * self._plan.num_answers + completion.index
        pieces = self._deltas[index].advance(completion)
        if self.options.drops_output and pieces:
            pieces = [TextDelta("", (), None if pieces[0].logprobs is None else (), (), FinishReason.LENGTH)]
        written = [self._write(index, piece, news.index) for piece in pieces]
        if self._plan.is_echoed and written and index not in self._has_begun:
            self._has_begun.add(index)
            written.insert(0, self._echo(index, news))
        return written

    def _write(self, index: int, piece: TextDelta, prompt_index: int) -> Json:
        logprobs = None
        if self._plan.wants_logprobs:
            shift = len(self._plan.prompts[prompt_index].text) if self._plan.is_echoed else 0
            offsets = [shift + offset for offset in piece.offsets]
            logprobs = completion_logprobs(self._plan.tokenizer, piece.token_ids, piece.logprobs or (), offsets)
        written: Json = {
            "index": index,
            "text": piece.text,
            "logprobs": logprobs,
            "finish_reason": spell_finish(piece.finish_reason),
        }
        if piece.finish_reason is not None:
            written["stop_reason"] = piece.stop_reason
        if self.options.wants_token_ids:
            written["token_ids"] = list(piece.token_ids)
        return written

    def _echo(self, index: int, news: Progress) -> Json:
        prompt = self._plan.prompts[news.index]
        echo: Json = {"index": index, "text": prompt.text, "logprobs": None, "finish_reason": None}
        if self._plan.wants_logprobs:
            decoder = self._plan.tokenizer.new_decoder((), self._plan.skips_special_tokens)
            offsets, num_characters = [], 0
            for token_id in prompt.token_ids:
                offsets.append(min(num_characters, len(prompt.text)))
                num_characters += len(decoder.push(token_id))
            logprobs: tuple[TokenLogprob | None, ...] = news.output.prompt_logprobs or ()
            echo["logprobs"] = completion_logprobs(self._plan.tokenizer, prompt.token_ids, logprobs, offsets)
        if self.options.wants_token_ids:
            echo["token_ids"] = []
        return echo
