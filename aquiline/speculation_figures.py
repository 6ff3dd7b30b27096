"""What speculation did for one output, as its caller sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpeculationFigures:
    """What speculation did for one output.

    Attributes:
        num_verify_steps: target forwards that drew at least one token of this output.
        num_draft_tokens: draft tokens that were verified, the root not counted.
        num_accepted_draft_tokens: those the user received.
        num_committed_tokens: tokens the user received; equals len(token_ids).
        step_seconds: wall time of the steps this output took part in.
        num_lookup_tokens: draft tokens that were looked up in texts and that no draft model proposed as well.
        num_accepted_lookup_tokens: those of them that the user received.
    """

    num_verify_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    num_committed_tokens: int
    step_seconds: float
    num_lookup_tokens: int = 0
    num_accepted_lookup_tokens: int = 0

    @property
    def acceptance_length(self) -> float:
        """Committed tokens per verify step, the bonus token included; 1.0 is plain decoding."""
        return self.num_committed_tokens / self.num_verify_steps if self.num_verify_steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the draft tokens, in [0, 1]."""
        return self.num_accepted_draft_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def time_per_committed_token_ms(self) -> float:
        return 1000.0 * self.step_seconds / self.num_committed_tokens if self.num_committed_tokens else 0.0
