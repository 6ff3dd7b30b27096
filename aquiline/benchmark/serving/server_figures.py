"""What a server of ours tells about itself while it is measured: the growth of its figures for Prometheus."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

PREFIX = "aquiline:"
COMMITTED = "generation_tokens_total"


@dataclass(frozen=True)
class ServerCounters:
    """Counters of one moment.

    Attributes:
        totals: by name without the prefix, all labels summed.
        phases: seconds of steps by phase.
        accepted_at: accepted draft tokens by distance from the root.
    """

    totals: Mapping[str, float]
    phases: Mapping[str, float]
    accepted_at: Mapping[int, float]


def read_counters(text: str | None) -> ServerCounters | None:
    """The counters in Prometheus's text format; None where this is no server of ours."""
    if text is None:
        return None
    totals: dict[str, float] = defaultdict(float)
    phases: dict[str, float] = defaultdict(float)
    accepted_at: dict[int, float] = defaultdict(float)
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except ValueError:
        return None
    for sample in samples:
        name = sample.name.removeprefix(PREFIX)
        if name == sample.name:
            continue
        totals[name] += sample.value
        if name == "step_phase_seconds_total":
            phases[sample.labels["phase"]] += sample.value
        elif name == "spec_decode_num_accepted_draft_tokens_per_pos_total":
            accepted_at[int(sample.labels["position"])] += sample.value
    return ServerCounters(totals, phases, accepted_at) if COMMITTED in totals else None


def growth(before: ServerCounters | None, after: ServerCounters | None) -> dict[str, Any] | None:
    """Figures of what happened in between, ready for JSON; None where one of the two is missing or nothing happened."""
    if before is None or after is None:
        return None

    def grown(name: str) -> float:
        return after.totals.get(name, 0.0) - before.totals.get(name, 0.0)

    num_committed = grown(COMMITTED)
    if num_committed <= 0:
        return None
    num_trees = grown("spec_decode_num_drafts_total")
    num_draft = grown("spec_decode_num_draft_tokens_total")
    num_accepted = grown("spec_decode_num_accepted_draft_tokens_total")
    return {
        "num_committed_tokens": int(num_committed),
        "num_trees": int(num_trees),
        "num_draft_tokens": int(num_draft),
        "num_accepted_draft_tokens": int(num_accepted),
        "acceptance_length": round(1 + num_accepted / num_trees, 3) if num_trees else None,
        "acceptance_rate": round(num_accepted / num_draft, 4) if num_draft else None,
        "conditional_acceptance_per_position": _conditional(before, after, num_trees),
        "num_steps": int(grown("step_seconds_count")),
        "time_per_committed_token_ms": round(1e3 * grown("step_seconds_sum") / num_committed, 3),
        "phases_ms": {
            name: round(1e3 * (seconds - before.phases.get(name, 0.0)) / num_committed, 3)
            for name, seconds in after.phases.items()
        },
        "num_preemptions": int(grown("num_preemptions_total")),
    }


def _conditional(before: ServerCounters, after: ServerCounters, num_trees: float) -> list[float]:
    """Share accepted at each depth of the trees that accepted all before it.

    Worked example, 10 trees, 6 tokens accepted at the first depth and 3 at the second: .6, then 3 / 6 = .5.
    """
    rates = []
    num_before = num_trees
    for position in sorted(after.accepted_at):
        num_here = after.accepted_at[position] - before.accepted_at.get(position, 0.0)
        if num_here <= 0 or num_before <= 0:
            break
        rates.append(round(num_here / num_before, 3))
        num_before = num_here
    return rates
