"""How many draft tokens the target accepts, position by position, on given prompts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from aquiline.engine.acceptance_tally import AcceptanceTally
from aquiline.llm import LLM, Conversation
from aquiline.request import RequestOutput, SamplingParams


def measure_acceptance(
    llm: LLM,
    conversations: Sequence[Conversation],
    params: SamplingParams,
    on_answer: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Answer conversations and count.

    Args:
        on_answer: called with the number of finished answers whenever one finishes.

    Returns:
        Figures by name, ready for JSON; rates in [0, 1], times in milliseconds.
    """
    tally = AcceptanceTally()
    num_finished = 0

    def count_finished(_: int, output: RequestOutput) -> None:
        nonlocal num_finished
        num_finished += output.finished
        if output.finished and on_answer is not None:
            on_answer(num_finished)

    started = time.perf_counter()
    outputs = llm.chat(conversations, params, on_output=count_finished, on_trace=tally.add)
    seconds = time.perf_counter() - started
    num_committed = sum(len(sample.token_ids) for output in outputs for sample in output.outputs)
    return {
        "num_prompts": len(outputs),
        "num_committed_tokens": num_committed,
        **tally.figures(),
        "time_per_committed_token_ms": round(1000.0 * seconds / num_committed, 3),
    }
