"""Lets the target write many texts together, and stops those that go round in circles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aquiline.llm import LLM
from aquiline.request import FinishReason, RequestOutput, SamplingParams
from aquiline.training.self_written.loops import goes_in_circles, looping_period, without_loop

# Looking for loops costs time; a loop that is noticed late costs tokens.
LOOK_EVERY = 16
TokenCallback = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Written:
    """One text that the target wrote.

    Attributes:
        prompt_token_ids: what it went on from.
        token_ids: with the token that ended it, if one did; without the loop it ran into, if it ran into one.
        text: of `token_ids`, special tokens left out.
        has_ended: it came to an end by itself.
        is_looping: it ran into a loop. One that only went in circles was stopped there and is kept up to that point.
    """

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    has_ended: bool
    is_looping: bool


def write_all(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    on_tokens: TokenCallback,
) -> list[Written]:
    """One text for each prompt, in order.

    Args:
        on_tokens: called as they come with how many tokens have come.
    """
    if not prompts:
        return []
    num_seen = [0] * len(prompts)

    def watch(index: int, output: RequestOutput) -> None:
        token_ids = output.outputs[0].token_ids
        on_tokens(len(token_ids) - num_seen[index])
        begun = num_seen[index] // LOOK_EVERY < len(token_ids) // LOOK_EVERY
        num_seen[index] = len(token_ids)
        if begun and not output.finished and (looping_period(token_ids) is not None or goes_in_circles(token_ids)):
            llm.engine.abort(output.request_id)

    outputs = llm.generate([list(prompt) for prompt in prompts], list(params), on_output=watch)
    return [_written(llm, output) for output in outputs]


def _written(llm: LLM, output: RequestOutput) -> Written:
    sample = output.outputs[0]
    has_ended = sample.finish_reason is FinishReason.STOP
    token_ids = sample.token_ids if has_ended else tuple(without_loop(sample.token_ids))
    is_looping = len(token_ids) < len(sample.token_ids)
    text = llm.tokenizer.decode(token_ids) if is_looping else sample.text
    return Written(output.prompt_token_ids, token_ids, text, has_ended, is_looping)
