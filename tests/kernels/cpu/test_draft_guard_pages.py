"""Growing trees natively reads and writes nothing beyond its buffers; see `test_guard_pages`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from aquiline.kernels import cpu
from aquiline.kernels.cpu.extension import native
from aquiline.models.kv_layer import KVLayer
from aquiline.models.native_growth import NativeGrowth
from aquiline.request import SamplingParams
from aquiline.speculation import DynamicTree, tree_from_branching
from tests.kernels.cpu.growth_case import GrowthCase, Progress, native_draft
from tests.kernels.cpu.levels import with_levels
from tests.kernels.cpu.test_guard_pages import guarded
from tests.source_tree import ROOT

pytestmark = pytest.mark.skipif(
    not cpu.is_available() or sys.platform != "linux", reason=cpu.why_not() or "guard pages are made for Linux here"
)


def run_growth(quantization: str, dtype: torch.dtype) -> None:
    """The last block and the last scratch place lie at the end of the memory but for the padding slot."""
    case = GrowthCase([Progress(27, 31, 4, SamplingParams(temperature=0)), Progress(0, 35, 4, SamplingParams())], dtype)
    draft = native_draft(quantization, num_threads=2)
    draft.draft_to_target_ids = guarded(draft.draft_to_target_ids)
    memory = [
        KVLayer(guarded(layer.keys), guarded(layer.values))
        for layer in case.memory(draft, num_slots=20 * 4 + 2 * 12 + 1)
    ]
    growth = NativeGrowth(draft, native().SlotRegions(20, 4, 2, 12), memory)
    shape = tree_from_branching([2, 1, 1, 1])
    for tree in (
        native().StaticTree(list(shape.parents), list(shape.ranks)),
        DynamicTree(4, 3, 20),
        DynamicTree(4, 3, 20, 1e-4),
    ):
        features = guarded(torch.cat(case.features))
        batch = growth.new_batch(features)
        batch.add(list(range(8)), 27, case.requests[0].token_ids[28:32], 1, 4)
        batch.add(list(range(19, 9, -1)), 0, case.requests[1].token_ids[1:36], 0, 4)
        prepared = growth.prepared(case.sampling())
        if isinstance(tree, DynamicTree):
            growth.grow_dynamic(batch, prepared, tree)
        else:
            growth.grow_static(batch, prepared, tree)


@with_levels
def test_nothing_beyond_a_buffer_is_touched(level: str) -> None:
    command = [sys.executable, "-m", "tests.kernels.cpu.test_draft_guard_pages"]
    paths = ":".join(path for path in sys.path if path)
    environment = os.environ | {"AQUILINE_CPU_LEVEL": level, "PYTHONPATH": paths}
    assert subprocess.run(command, cwd=ROOT, env=environment, timeout=120, check=False).returncode == 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    native().guard_allocations(True)
    for packing in ("none", "int8", "int4"):
        for number_type in (torch.bfloat16, torch.float32):
            run_growth(packing, number_type)
