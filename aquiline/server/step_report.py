"""What one step tells about the engine, read on the engine's thread and handed to the event loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aquiline.llm import LLM


@dataclass(frozen=True, slots=True)
class StepReport:
    """The engine after a step.

    Attributes:
        seconds: wall time of the step.
        phase_seconds: its share of each phase.
        num_running, num_waiting: answers that hold a device row, and that wait for one.
        cache_usage: share of the cache's blocks that requests hold, 0 to 1.
        num_preemptions: requests that lost their blocks in the step.
    """

    seconds: float
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    num_running: int = 0
    num_waiting: int = 0
    cache_usage: float = 0.0
    num_preemptions: int = 0


Reporter = Callable[[float], StepReport]


def engine_reporter(llm: LLM) -> Reporter:
    """A reporter for the engine of `llm`; it is called after each step with the step's seconds."""
    engine = llm.engine
    phases_before = dict(engine.clock.seconds)
    num_preemptions_before = engine.scheduler.num_preemptions

    def report(seconds: float) -> StepReport:
        nonlocal phases_before, num_preemptions_before
        phases = dict(engine.clock.seconds)
        num_preemptions = engine.scheduler.num_preemptions
        made = StepReport(
            seconds=seconds,
            phase_seconds={name: phases[name] - phases_before.get(name, 0.0) for name in phases},
            num_running=engine.scheduler.num_running,
            num_waiting=engine.scheduler.num_waiting,
            cache_usage=1.0 - engine.cache.num_free_blocks / engine.cache.num_blocks,
            num_preemptions=num_preemptions - num_preemptions_before,
        )
        phases_before, num_preemptions_before = phases, num_preemptions
        return made

    return report
