"""Counts of tokens, and what speculation did for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aquiline.request import RequestOutput
from aquiline.server.submission import Run, Submission
from aquiline.speculation_figures import SpeculationFigures


def usage_of(outputs: Sequence[RequestOutput], drops_output: bool = False) -> dict[str, Any]:
    """The `usage` object of the prompts of one request.

    Args:
        drops_output: the answers were only drawn because the engine draws at least one token; they do not count.
    """
    parts = [completion.speculation for output in outputs for completion in output.outputs]
    num_prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    num_committed_tokens = 0 if drops_output else sum(part.num_committed_tokens for part in parts)
    num_accepted = 0 if drops_output else sum(part.num_accepted_draft_tokens for part in parts)
    num_draft_tokens = 0 if drops_output else sum(part.num_draft_tokens for part in parts)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_committed_tokens,
        "total_tokens": num_prompt_tokens + num_committed_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(output.num_cached_tokens for output in outputs)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": num_accepted,
            "rejected_prediction_tokens": num_draft_tokens - num_accepted,
        },
    }


def aquiline_of(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """The `aquiline` object of a whole answer: pooled over its answers (sums divided by sums)."""
    parts = [completion.speculation for output in outputs for completion in output.outputs]
    pooled = SpeculationFigures(
        num_verify_steps=sum(part.num_verify_steps for part in parts),
        num_draft_tokens=sum(part.num_draft_tokens for part in parts),
        num_accepted_draft_tokens=sum(part.num_accepted_draft_tokens for part in parts),
        num_committed_tokens=sum(part.num_committed_tokens for part in parts),
        step_seconds=sum(part.step_seconds for part in parts),
    )
    return {
        "acceptance_length": pooled.acceptance_length,
        "acceptance_rate": pooled.acceptance_rate,
        "num_verify_steps": pooled.num_verify_steps,
        "num_committed_tokens": pooled.num_committed_tokens,
        "num_draft_tokens": pooled.num_draft_tokens,
        "num_accepted_draft_tokens": pooled.num_accepted_draft_tokens,
        "time_per_committed_token_ms": pooled.time_per_committed_token_ms,
        "seeds": [output.seed for output in outputs],
    }


def runs_of(runs: Sequence[Run]) -> list[dict[str, int]]:
    """The `runs` of a streamed event: what each step behind it added."""
    return [{"num_tokens": run.num_tokens, "num_accepted_draft_tokens": run.num_accepted} for run in runs]


def logged_figures(submission: Submission) -> dict[str, Any]:
    """What a log line tells about a request: counts and times, never its text."""
    outputs = submission.outputs
    usage = usage_of(outputs)
    figures = {
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "acceptance_length": round(aquiline_of(outputs)["acceptance_length"], 3),
        "finish_reasons": [str(completion.finish_reason) for output in outputs for completion in output.outputs],
    }
    if submission.first_token_at is not None:
        figures["ttft_ms"] = round(1000.0 * (submission.first_token_at - submission.submitted_at), 3)
    return figures
