"""Plain and speculative decoding of the same prompts, over batch sizes: time per committed token, phase by phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aquiline.benchmark.full_batch import full_batch_figures
from aquiline.benchmark.peak_memory import peak_memory_bytes
from aquiline.llm import LLM, Conversation
from aquiline.request import RequestOutput, SamplingParams
from aquiline.speculation import SpeculationMode


@dataclass(frozen=True)
class Sweep:
    """What a measurement varies.

    Attributes:
        rounds: how often each combination is measured; the median by speed counts.
    """

    batch_sizes: Sequence[int]
    modes: Sequence[SpeculationMode]
    rounds: int = 1

    @property
    def num_runs(self) -> int:
        """How often all conversations are answered."""
        return len(self.batch_sizes) * len(self.modes) * self.rounds


def measure_offline(
    llm: LLM,
    conversations: Sequence[Conversation],
    params: SamplingParams,
    sweep: Sweep,
    on_run: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
    """Answer all conversations with every mode at every batch size, each time in a fresh engine after a short warm-up.

    Batch by batch the modes take turns, so that those that are compared meet the machine in the same state.

    Args:
        on_run: called with the number of finished runs.

    Returns:
        A row per combination, ready for JSON. `phases_ms` are milliseconds per committed token; what lies between the
        steps is in `time_per_committed_token_ms` and in no phase. `full_batch` is that of `full_batch_figures`.
    """
    rows: list[dict[str, Any]] = []
    num_done = 0
    for batch_size in sweep.batch_sizes:
        runs: list[list[dict[str, Any]]] = [[] for _ in sweep.modes]
        for _ in range(sweep.rounds):
            for mode, found in zip(sweep.modes, runs, strict=True):
                found.append(_measure(llm, conversations, params, batch_size, mode))
                num_done += 1
                if on_run is not None:
                    on_run(num_done)
        rows += [sorted(found, key=lambda row: row["tokens_per_second"])[len(found) // 2] for found in runs]
    return rows


def _measure(
    llm: LLM, conversations: Sequence[Conversation], params: SamplingParams, batch_size: int, mode: SpeculationMode
) -> dict[str, Any]:
    speculative = llm.config.speculative
    lookup = "off" if mode.is_off else speculative.lookup
    config = replace(
        llm.config,
        speculative=replace(speculative, mode=mode, lookup=lookup),
        scheduler=replace(llm.config.scheduler, max_num_seqs=batch_size),
    )
    llm.reconfigured(config).chat(list(conversations[:1]), replace(params, max_tokens=8, min_tokens=0))
    measured = llm.reconfigured(config)
    tally = measured.engine.compare_forecasts()
    recorder = measured.record_steps()
    started = time.perf_counter()
    outputs = measured.chat(list(conversations), params)
    seconds = time.perf_counter() - started
    return {
        "batch_size": batch_size,
        "speculate": mode.text,
        **_figures(outputs, seconds),
        "full_batch": full_batch_figures(recorder.records, min(batch_size, len(outputs))),
        "phases_ms": _phases(measured, outputs),
        "forecast": tally.figures(),
        "peak_memory_mb": round(peak_memory_bytes() / 2**20, 1),
    }


def _figures(outputs: Sequence[RequestOutput], seconds: float) -> dict[str, Any]:
    samples = [sample for output in outputs for sample in output.outputs]
    num_committed = sum(len(sample.token_ids) for sample in samples)
    num_steps = sum(sample.speculation.num_verify_steps for sample in samples)
    return {
        "num_committed_tokens": num_committed,
        "tokens_per_second": round(num_committed / seconds, 2),
        "time_per_committed_token_ms": round(1000.0 * seconds / num_committed, 3),
        "acceptance_length": round(num_committed / num_steps, 3),
    }


def _phases(llm: LLM, outputs: Sequence[RequestOutput]) -> dict[str, float]:
    num_committed = sum(len(sample.token_ids) for output in outputs for sample in output.outputs)
    return {name: round(1000.0 * spent / num_committed, 3) for name, spent in llm.engine.clock.seconds.items()}
