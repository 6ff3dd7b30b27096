"""Plain and speculative decoding of the same prompts, over batch sizes: time per committed token, phase by phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aquiline.benchmark.full_batch import FullBatch, full_batch_of
from aquiline.benchmark.peak_memory import peak_memory_bytes
from aquiline.config import EngineConfig
from aquiline.llm import LLM, Conversation
from aquiline.request import RequestOutput, SamplingParams
from aquiline.speculation import SpeculationMode


@dataclass(frozen=True)
class Sweep:
    """What a measurement varies.

    Attributes:
        rounds: how often each combination is measured; the median by speed counts.
        warm_up_rounds: how often each engine answers everything before that, as a service that has been running for a
            while; 0: every round has a fresh engine.
    """

    batch_sizes: Sequence[int]
    modes: Sequence[SpeculationMode]
    rounds: int = 1
    warm_up_rounds: int = 0

    @property
    def num_runs(self) -> int:
        """How often all conversations are answered."""
        return len(self.batch_sizes) * len(self.modes) * (self.warm_up_rounds + self.rounds)


def measure_offline(
    llm: LLM,
    conversations: Sequence[Conversation],
    params: SamplingParams,
    sweep: Sweep,
    on_run: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
    """Answer all conversations with every mode at every batch size.

    Batch by batch the modes take turns, so that those that are compared meet the machine in the same state. With rounds
    to warm up, each mode has one engine for all rounds of a batch size, without a prefix cache, in which it would find
    its prompts again.

    Args:
        on_run: called with the number of finished runs.

    Returns:
        A row per combination, ready for JSON. `phases_ms` are milliseconds per committed token; what lies between the
        steps is in `time_per_committed_token_ms` and in no phase. `full_batch` is that of `FullBatch`.
    """
    rows: list[dict[str, Any]] = []
    num_done = 0
    for batch_size in sweep.batch_sizes:
        engines: dict[str, LLM] = {}
        runs: list[list[dict[str, Any]]] = [[] for _ in sweep.modes]
        for turn in range(sweep.warm_up_rounds + sweep.rounds):
            for mode, found in zip(sweep.modes, runs, strict=True):
                engine = engines.get(mode.text)
                if engine is None:
                    config = config_of(llm, batch_size, mode, shares_prompts=sweep.warm_up_rounds == 0)
                    engine = started(llm, config, conversations, params)
                # One that is not asked again makes room for the next.
                if sweep.warm_up_rounds:
                    engines[mode.text] = engine
                row = _measure(engine, conversations, params, batch_size, mode)
                if turn >= sweep.warm_up_rounds:
                    found.append(row)
                num_done += 1
                if on_run is not None:
                    on_run(num_done)
        rows += [sorted(found, key=lambda row: row["tokens_per_second"])[len(found) // 2] for found in runs]
    return rows


def config_of(llm: LLM, batch_size: int, mode: SpeculationMode, shares_prompts: bool) -> EngineConfig:
    """Of the engine that measures one combination."""
    speculative, cache = llm.config.speculative, llm.config.cache
    lookup = "off" if mode.is_off else speculative.lookup
    return replace(
        llm.config,
        speculative=replace(speculative, mode=mode, lookup=lookup),
        scheduler=replace(llm.config.scheduler, max_num_seqs=batch_size),
        cache=replace(cache, enable_prefix_cache=cache.enable_prefix_cache and shares_prompts),
    )


def started(llm: LLM, config: EngineConfig, conversations: Sequence[Conversation], params: SamplingParams) -> LLM:
    """A fresh engine, in a process that has run one like it."""
    llm.reconfigured(config).chat(list(conversations[:1]), replace(params, max_tokens=8, min_tokens=0))
    return llm.reconfigured(config)


def _measure(
    measured: LLM, conversations: Sequence[Conversation], params: SamplingParams, batch_size: int, mode: SpeculationMode
) -> dict[str, Any]:
    tally = measured.engine.compare_forecasts()
    run = answer(measured, conversations, params, batch_size)
    return {"batch_size": batch_size, "speculate": mode.text, **run.figures(), "forecast": tally.figures()}


@dataclass(frozen=True)
class Run:
    """Some answers of one engine, and what they took.

    Attributes:
        seconds: by the clock, from the first question to the last answer.
        in_phases: seconds of every phase of the steps.
    """

    outputs: Sequence[RequestOutput]
    seconds: float
    in_phases: dict[str, float]
    full_batch: FullBatch

    def __add__(self, other: Run) -> Run:
        in_phases = {name: spent + other.in_phases.get(name, 0.0) for name, spent in self.in_phases.items()}
        outputs = [*self.outputs, *other.outputs]
        return Run(outputs, self.seconds + other.seconds, in_phases, self.full_batch + other.full_batch)

    def figures(self) -> dict[str, Any]:
        """Ready for JSON."""
        samples = [sample for output in self.outputs for sample in output.outputs]
        num_committed = sum(len(sample.token_ids) for sample in samples)
        num_steps = sum(sample.speculation.num_verify_steps for sample in samples)
        return {
            "num_committed_tokens": num_committed,
            "tokens_per_second": round(num_committed / self.seconds, 2),
            "time_per_committed_token_ms": round(1000.0 * self.seconds / num_committed, 3),
            "acceptance_length": round(num_committed / num_steps, 3),
            "full_batch": self.full_batch.figures(),
            "phases_ms": {name: round(1000.0 * spent / num_committed, 3) for name, spent in self.in_phases.items()},
            "peak_memory_mb": round(peak_memory_bytes() / 2**20, 1),
        }


def answer(measured: LLM, conversations: Sequence[Conversation], params: SamplingParams, batch_size: int) -> Run:
    """Answer all conversations."""
    recorder = measured.record_steps()
    before = dict(measured.engine.clock.seconds)
    start = time.perf_counter()
    outputs = measured.chat(list(conversations), params)
    seconds = time.perf_counter() - start
    in_phases = {name: spent - before.get(name, 0.0) for name, spent in measured.engine.clock.seconds.items()}
    return Run(outputs, seconds, in_phases, full_batch_of(recorder.records, min(batch_size, len(outputs))))
