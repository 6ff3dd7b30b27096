"""Every kernel of a model against its floor: what reading its bytes and making its products would take at best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from aquiline.benchmark.interleaved import Case, Turns, measure_cases
from aquiline.benchmark.linear_cases import linear_cases
from aquiline.benchmark.machine import MachineSpeed, MemoryStream, measure_machine
from aquiline.benchmark.row_cases import row_cases, sampling_cases
from aquiline.benchmark.step_cases import (
    TargetInMemory,
    attention_case,
    draft_cases,
    prefill_case,
    target_step_case,
)
from aquiline.benchmark.step_rows import OneRequest
from aquiline.errors import InvalidParameterError, UnsupportedFeatureError
from aquiline.llm import LLM
from aquiline.models.native_eagle import NativeEagle
from aquiline.models.native_llama import NativeLlama

# Trees are no larger; what has more rows is a prompt or a batch.
MOST_TREE_ROWS = 32
MOST_PREFILL_ROWS = 512


@dataclass(frozen=True)
class KernelSweep:
    """What is measured.

    Attributes:
        row_counts: rows of each kernel; attention, whole steps, the draft and sampling take those up to 32.
        context: committed tokens that a tree stands behind.
        num_rounds: how often each size has its turn.
    """

    row_counts: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 256)
    context: int = 256
    num_rounds: int = 15


def measure_kernels(llm: LLM, sweep: KernelSweep, on_run: Callable[[int, int], None] | None = None) -> dict[str, Any]:
    """Measure a loaded model.

    Args:
        on_run: called with the number of finished runs and of all runs.

    Returns:
        `speed`, what `measure_machine` finds; `packed_bytes` of the target; `rows`, see `measure_cases`, those of
        `target step` and `prefill` with `tokens_per_second` (rows per second).

    Raises:
        UnsupportedFeatureError: the model does not run on native kernels.
        InvalidParameterError: a context beyond that of the model.
    """
    target = llm.models.target
    if not isinstance(target, NativeLlama):
        raise UnsupportedFeatureError("the kernels measured here are the native ones, and this model runs on PyTorch")
    most_tree_rows = max([count for count in sweep.row_counts if count <= MOST_TREE_ROWS], default=0)
    num_slots = llm.engine.pool.layout.num_slots
    largest = min(llm.engine.sizes.max_model_len, num_slots - most_tree_rows)
    if not 2 <= sweep.context <= largest:
        raise InvalidParameterError(f"--context is {sweep.context}; for this model it must be 2 to {largest}")
    stream = MemoryStream(target.threads)
    machine = measure_machine(target.threads, stream)
    groups = _case_groups(llm, target, sweep)
    num_all = sum(map(len, groups)) * (sweep.num_rounds + 1)
    num_before, rows = 0, []
    for group in groups:
        shown = None if on_run is None else _shifted(on_run, num_before, num_all)
        rows += measure_cases(group, Turns(sweep.num_rounds, stream.read, shown), machine)
        num_before += len(group) * (sweep.num_rounds + 1)
    return {
        "speed": _rounded(machine),
        "packed_bytes": target.num_bytes,
        "context": sweep.context,
        "num_rounds": sweep.num_rounds,
        "rows": [_with_speed(row) for row in rows],
    }


def _case_groups(llm: LLM, target: NativeLlama, sweep: KernelSweep) -> list[list[Case]]:
    """Cases that take turns, group by group; within one the row counts follow each other."""
    pool, config = llm.engine.pool, target.config
    trees = [count for count in sweep.row_counts if count <= MOST_TREE_ROWS]
    in_memory = TargetInMemory(target, pool.target_layers, OneRequest(sweep.context, config.vocab_size))
    in_memory.prefill()
    num_prefill = min(MOST_PREFILL_ROWS, llm.engine.sizes.max_model_len, pool.layout.num_slots)
    draft: list[Case] = []
    if isinstance(llm.models.draft, NativeEagle):
        draft = draft_cases(llm.models.draft, pool.draft_layers, sweep.context, trees)
    groups = [
        [case for count in sweep.row_counts for case in linear_cases(target, count)],
        [attention_case(in_memory, count) for count in trees],
        [case for count in sweep.row_counts for case in row_cases(config, count)],
        [case for count in trees for case in sampling_cases(target.sampling, config.vocab_size, count)],
        draft,
        [target_step_case(in_memory, count) for count in trees],
        [prefill_case(in_memory, num_prefill)],
    ]
    return [group for group in groups if group]


def _shifted(on_run: Callable[[int, int], None], num_before: int, num_all: int) -> Callable[[int], None]:
    return lambda num_done: on_run(num_before + num_done, num_all)


def _with_speed(row: dict[str, Any]) -> dict[str, Any]:
    if row["kernel"] not in ("target step", "prefill"):
        return row
    return row | {"tokens_per_second": round(1e6 * row["num_rows"] / row["median_us"], 1)}


def _rounded(machine: MachineSpeed) -> dict[str, Any]:
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in asdict(machine).items()}
