"""How many draft tokens the target accepts, position by position, on given prompts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aquiline.llm import LLM, Conversation, TreeTrace
from aquiline.request import RequestOutput, SamplingParams


@dataclass
class AcceptanceTally:
    """Counts over steps in which a draft tree was verified.

    Worked example, a chain of 3 and four steps that accept 0, 1, 1 and 3 drafts:

        num_steps 4, reached [3, 1, 1]     steps that accepted at least 1, 2, 3
        survival            .75 .25 .25
        conditional         .75 .33 1.0
        acceptance_length   1 + 5 / 4 = 2.25
    """

    num_steps: int = 0
    num_accepted_draft_tokens: int = 0
    reached: list[int] = field(default_factory=list)

    def add(self, trace: TreeTrace) -> None:
        """Count one tree; a root alone is not one."""
        if len(trace.tokens) == 1:
            return
        num_accepted_draft_tokens = min(len(trace.accepted_nodes), len(trace.committed_token_ids))
        self.num_steps += 1
        self.num_accepted_draft_tokens += num_accepted_draft_tokens
        self.reached += [0] * (num_accepted_draft_tokens - len(self.reached))
        for depth in range(num_accepted_draft_tokens):
            self.reached[depth] += 1

    @property
    def acceptance_length(self) -> float:
        """Committed tokens per verified tree, the bonus token included."""
        return 1.0 + self.num_accepted_draft_tokens / self.num_steps if self.num_steps else 0.0

    @property
    def conditional_acceptance_per_position(self) -> list[float]:
        """Share of steps that accepted position i among those that accepted all before it."""
        before = [self.num_steps, *self.reached]
        return [reached / earlier for reached, earlier in zip(self.reached, before, strict=False)]


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
        "num_verify_steps": tally.num_steps,
        "num_accepted_draft_tokens": tally.num_accepted_draft_tokens,
        "acceptance_length": round(tally.acceptance_length, 4),
        "conditional_acceptance_per_position": [round(r, 4) for r in tally.conditional_acceptance_per_position],
        "time_per_committed_token_ms": round(1000.0 * seconds / num_committed, 3),
    }
