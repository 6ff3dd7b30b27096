"""What one user waits for: time to the first token, time per token after it, and the gaps between what appears."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aquiline.config import LookupMode
from aquiline.llm import LLM, Conversation
from aquiline.request import RequestOutput, SamplingParams
from aquiline.speculation import SpeculationMode

WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Variant:
    """One way to decode."""

    mode: SpeculationMode
    lookup: LookupMode


@dataclass(frozen=True)
class Answer:
    """One answer and when its parts appeared.

    Attributes:
        appeared: seconds since the prompt was given, of every step that showed something new.
        phases: seconds by phase of the engine.
    """

    output: RequestOutput
    appeared: tuple[float, ...]
    phases: Mapping[str, float]

    @property
    def seconds(self) -> float:
        return self.appeared[-1]

    @property
    def num_tokens(self) -> int:
        return len(self.output.outputs[0].token_ids)


def measure_latency(
    llm: LLM,
    workloads: Mapping[str, Sequence[Conversation]],
    params: SamplingParams,
    variants: Sequence[Variant],
    rounds: int,
    on_answer: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
    """Answer every prompt alone, the variants taking turns, and keep the quickest of `rounds` answers of each.

    Prompts are not found in the prefix cache, so that the time to the first token is that of a new prompt.

    Args:
        on_answer: called with the number of answers so far.

    Returns:
        A row per workload and variant, ready for JSON.
    """
    engines = [_engine(llm, variant) for variant in variants]
    num_answered = 0
    rows = []
    for engine in engines:
        engine.chat(next(iter(workloads.values()))[0], replace(params, max_tokens=WARM_UP_TOKENS, min_tokens=0))
    for name, conversations in workloads.items():
        tallies = [engine.engine.compare_forecasts() for engine in engines]
        best: list[list[Answer]] = [[] for _ in variants]
        for conversation in conversations:
            tries: list[list[Answer]] = [[] for _ in variants]
            for turn in range(rounds):
                for place in range(len(variants)):
                    index = (place + turn) % len(variants)
                    tries[index].append(_answer(engines[index], conversation, params))
                    num_answered += 1
                    if on_answer is not None:
                        on_answer(num_answered)
            for kept, own in zip(best, tries, strict=True):
                kept.append(min(own, key=lambda answer: answer.seconds))
        rows += [
            _row(name, variant, own, best[0]) | {"forecast": tally.figures()}
            for variant, own, tally in zip(variants, best, tallies, strict=True)
        ]
    return rows


def _engine(llm: LLM, variant: Variant) -> LLM:
    lookup = "off" if variant.mode.is_off else variant.lookup
    config = replace(
        llm.config,
        speculative=replace(llm.config.speculative, mode=variant.mode, lookup=lookup),
        scheduler=replace(llm.config.scheduler, max_num_seqs=1),
        cache=replace(llm.config.cache, enable_prefix_cache=False),
    )
    return llm.reconfigured(config)


def _answer(llm: LLM, conversation: Conversation, params: SamplingParams) -> Answer:
    appeared: list[float] = []
    before = dict(llm.engine.clock.seconds)
    started = time.perf_counter()
    outputs = llm.chat(conversation, params, on_output=lambda _, output: appeared.append(time.perf_counter() - started))
    after = llm.engine.clock.seconds
    return Answer(outputs[0], tuple(appeared), {name: after[name] - before[name] for name in after})


def _row(workload: str, variant: Variant, answers: Sequence[Answer], reference: Sequence[Answer]) -> dict[str, Any]:
    """Figures of one variant on one workload; `reference` are the answers of the first variant.

    Worked example, 4 tokens that appear as 1 after 50 ms, 2 more after 60 ms and 1 more after 68 ms:

        ttft_ms 50      tpot_ms (68 - 50) / 3 = 6      itl_ms 10 and 8
    """
    figures = [answer.output.outputs[0].speculation for answer in answers]
    num_tokens = sum(answer.num_tokens for answer in answers)
    num_later = sum(answer.num_tokens - 1 for answer in answers)
    later_seconds = sum(answer.seconds - answer.appeared[0] for answer in answers)
    gaps = [
        1e3 * (after - before)
        for answer in answers
        for before, after in zip(answer.appeared, answer.appeared[1:], strict=False)
    ]
    num_steps = sum(part.num_verify_steps for part in figures)
    return {
        "workload": workload,
        "speculate": variant.mode.text,
        "lookup": "off" if variant.mode.is_off else variant.lookup,
        "num_prompts": len(answers),
        "num_committed_tokens": num_tokens,
        "ttft_ms": round(1e3 * statistics.median(answer.appeared[0] for answer in answers), 3),
        "tpot_ms": round(1e3 * later_seconds / num_later, 3) if num_later else None,
        "itl_p50_ms": _percentile(gaps, 50),
        "itl_p95_ms": _percentile(gaps, 95),
        "time_per_committed_token_ms": round(1e3 * sum(part.step_seconds for part in figures) / num_tokens, 3),
        "acceptance_length": round(num_tokens / num_steps, 3),
        "num_draft_tokens": sum(part.num_draft_tokens for part in figures),
        "num_accepted_draft_tokens": sum(part.num_accepted_draft_tokens for part in figures),
        "num_accepted_lookup_tokens": sum(part.num_accepted_lookup_tokens for part in figures),
        "phases_ms": {
            name: round(1e3 * sum(answer.phases[name] for answer in answers) / num_tokens, 3)
            for name in answers[0].phases
        },
        "num_equal_answers": sum(
            own.output.outputs[0].token_ids == other.output.outputs[0].token_ids
            for own, other in zip(answers, reference, strict=True)
        ),
    }


def _percentile(values: Sequence[float], percent: int) -> float | None:
    """The smallest value that at least so many per cent of all do not exceed; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[max(0, -(-percent * len(ordered) // 100) - 1)], 3)
