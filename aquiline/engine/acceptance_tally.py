"""Counts of accepted draft tokens, position by position."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aquiline.engine.trace import TreeTrace


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
        if len(trace.tokens) > 1:
            self.count(min(len(trace.accepted_nodes), len(trace.committed_token_ids)))

    def count(self, num_accepted_draft_tokens: int) -> None:
        """Count one step that accepted so many."""
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

    def figures(self) -> dict[str, Any]:
        """Figures by name, ready for JSON; rates in [0, 1]."""
        return {
            "num_verify_steps": self.num_steps,
            "num_accepted_draft_tokens": self.num_accepted_draft_tokens,
            "acceptance_length": round(self.acceptance_length, 4),
            "conditional_acceptance_per_position": [round(r, 4) for r in self.conditional_acceptance_per_position],
        }
