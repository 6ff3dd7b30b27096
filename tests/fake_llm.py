"""A stand-in for `aquiline.llm.LLM` that needs no model: it answers every prompt with itself in capitals.

A token is one character and its id the character's code point. A step commits up to `TOKENS_PER_STEP` tokens to every
unfinished prompt; prompts are stepped last to first, so that answers become complete in an awkward order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aquiline.engine.step_trace import StepFacts, StepRecorder
from aquiline.engine.trace import TreeTrace
from aquiline.request import (
    CompletionOutput,
    FinishReason,
    RequestOutput,
    SamplingParams,
    TokenLogprob,
)
from aquiline.speculation_figures import SpeculationFigures

TOKENS_PER_STEP = 3


class FakeTokenizer:
    """One token per character."""

    def token_text(self, token_id: int) -> str:
        return chr(token_id)

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))


class FakeLLM:
    """Records how it was called; `failure` is raised after the first step."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.tokenizer = FakeTokenizer()
        self.failure = failure
        self.calls: list[tuple[str, Any, SamplingParams]] = []
        self.recorder: StepRecorder | None = None

    def record_steps(self) -> StepRecorder:
        self.recorder = StepRecorder()
        return self.recorder

    def generate(self, prompts: Sequence[str], params: SamplingParams, **callbacks: Any) -> list[RequestOutput]:
        self.calls.append(("generate", list(prompts), params))
        return self._answer(list(prompts), params, **callbacks)

    def chat(
        self, conversations: Sequence[Sequence[Mapping[str, Any]]], params: SamplingParams, **callbacks: Any
    ) -> list[RequestOutput]:
        self.calls.append(("chat", [list(conversation) for conversation in conversations], params))
        return self._answer([conversation[-1]["content"] for conversation in conversations], params, **callbacks)

    def _answer(
        self,
        prompts: list[str],
        params: SamplingParams,
        on_output: Callable[[int, RequestOutput], None] | None,
        on_trace: Callable[[TreeTrace], None] | None,
    ) -> list[RequestOutput]:
        num_tokens = [min(len(prompt), params.max_tokens or 1000) for prompt in prompts]
        for step in range(-(-max(num_tokens) // TOKENS_PER_STEP)):
            if self.recorder is not None:
                self.recorder.start(float(step))
                self.recorder.lap("verify", step + 0.5)
                self.recorder.finish(StepFacts(step, len(prompts), 0, len(prompts), 0, 0, 0, len(prompts)))
            for index in reversed(range(len(prompts))):
                first = step * TOKENS_PER_STEP
                if first < num_tokens[index]:
                    count = min(first + TOKENS_PER_STEP, num_tokens[index])
                    if on_output is not None:
                        on_output(index, _state(prompts[index], count, params))
                    if on_trace is not None:
                        on_trace(_trace(prompts[index].upper(), index, step))
            if self.failure is not None:
                raise self.failure
        return [_state(prompt, count, params) for prompt, count in zip(prompts, num_tokens, strict=True)]


def _state(prompt: str, count: int, params: SamplingParams) -> RequestOutput:
    is_finished = count == min(len(prompt), params.max_tokens or 1000)
    finish_reason = FinishReason.STOP if count == len(prompt) else FinishReason.LENGTH
    token_ids = tuple(map(ord, prompt.upper()[:count]))
    num_steps = -(-count // TOKENS_PER_STEP)
    logprobs = tuple(TokenLogprob(token_id, -0.5, 1, ((token_id, -0.5), (0, float("-inf")))) for token_id in token_ids)
    outputs = tuple(
        CompletionOutput(
            index=sample_index,
            text=prompt.upper()[:count],
            token_ids=token_ids,
            logprobs=logprobs if params.logprobs is not None else None,
            finish_reason=finish_reason if is_finished else None,
            stop_reason=None,
            speculation=SpeculationFigures(num_steps, 5 * num_steps, count - num_steps, count, 0.002 * count),
        )
        for sample_index in range(params.n)
    )
    return RequestOutput(
        request_id=prompt,
        prompt=prompt,
        prompt_token_ids=tuple(map(ord, prompt)),
        prompt_logprobs=(None,) if params.prompt_logprobs is not None else None,
        outputs=outputs,
        seed=7 if params.seed is None else params.seed,
        num_cached_tokens=0,
        finished=is_finished,
    )


def _trace(text: str, index: int, step: int) -> TreeTrace:
    """A root with two children, the second accepted; `?` is the rejected one and `!` the bonus token."""
    root, accepted = ord(text[0]), ord(text[1:2] or " ")
    return TreeTrace(
        request_id=str(index),
        step=step,
        tokens=(root, ord("?"), accepted),
        parents=(-1, 0, 0),
        drawn_tokens=(accepted, ord("x"), ord("!")),
        accepted_nodes=(2,),
        committed_token_ids=(accepted, ord("!")),
    )
