"""Rows put together natively are those of the reference builder: same states, same K and V, bit for bit."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aquiline.engine.inputs import InputBuilder, StepLayout
from aquiline.engine.kv_pool import KVPool, MemoryKind
from aquiline.engine.sample import Accepted
from aquiline.engine.schedule import ScheduledBatch, ScheduledRequest
from aquiline.engine.slots import SlotLayout
from aquiline.engine.target_runner import NativeRunner, ReferenceRunner, runner_for
from aquiline.engine.tree import DraftTree
from aquiline.kernels import cpu
from aquiline.kernels.cpu import Threads
from aquiline.kernels.cpu.extension import native
from aquiline.models.native_llama import NativeLlama
from aquiline.request import Request, SamplingParams
from aquiline.speculation import parse_speculation
from tests.models.native_models import packable_config, target_tensors

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())
LAYOUT = SlotLayout(num_blocks=40, block_size=4, max_num_seqs=6, scratch_per_row=9)
CONFIG = packable_config(num_layers=2)


def new_pool() -> KVPool:
    """Memory full of numbers, so that rows read what no request of the step wrote."""
    pool = KVPool(LAYOUT, CONFIG, None, MemoryKind(torch.bfloat16, torch.device("cpu")))
    generator = torch.Generator().manual_seed(3)
    for layer in pool.target_layers:
        layer.keys.copy_(torch.randn(layer.keys.shape, generator=generator))
        layer.values.copy_(torch.randn(layer.values.shape, generator=generator))
    return pool


@cache
def new_target() -> NativeLlama:
    return NativeLlama.pack(CONFIG, target_tensors(CONFIG), "none", Threads(1), (0, 1))


class StepMaker:
    """Random steps: requests with scattered blocks, of which some grow trees."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._blocks = self.random.sample(range(LAYOUT.num_blocks), LAYOUT.num_blocks)
        self._rows = self.random.sample(range(LAYOUT.max_num_seqs), LAYOUT.max_num_seqs)

    def request(self, num_tokens: int, num_computed_tokens: int, num_slots: int) -> Request:
        tokens = tuple(self.random.randrange(CONFIG.vocab_size) for _ in range(num_tokens))
        request = Request(str(len(self._rows)), tokens, SamplingParams(), seed=0, row=self._rows.pop())
        request.num_computed_tokens = num_computed_tokens
        request.block_ids = [self._blocks.pop() for _ in range(-(-num_slots // LAYOUT.block_size))]
        return request

    def step(self, num_trees: int, num_plain: int, num_chunks: int, num_nodes: int) -> StepLayout:
        scheduled = []
        for index in range(num_trees + num_plain):
            length, depth = self.random.randint(1, 12), 3 if index < num_trees else 0
            request = self.request(length, length - 1, length + depth)
            scheduled.append(ScheduledRequest(request, 1, draws_token=True, max_draft_depth=depth))
        for _ in range(num_chunks):
            first, count = self.random.randint(0, 5), self.random.randint(1, 7)
            request = self.request(first + count, first, first + count)
            scheduled.append(ScheduledRequest(request, count, draws_token=False, max_draft_depth=0))
        shape = parse_speculation("chain:3").shape
        assert shape is not None
        return StepLayout.of(ScheduledBatch(tuple(scheduled), shape, ()), num_nodes)

    def tree(self, num_reqs: int, num_nodes: int, is_ragged: bool) -> DraftTree:
        """Random shapes up to depth 3, with places that some requests do not have; ragged ones know their rows."""
        parents, depths = [], []
        row_counts = tuple(self.random.randint(1, num_nodes) if is_ragged else num_nodes for _ in range(num_reqs))
        for count in row_counts:
            own_parents, own_depths = [-1], [0]
            for node in range(1, count):
                candidates = [n for n in range(node) if own_depths[n] < 3 and (n == 0 or own_parents[n] >= 0)]
                parent = self.random.choice([-1, *candidates, *candidates])
                own_parents.append(parent)
                own_depths.append(own_depths[parent] + 1 if parent >= 0 else 2)
            parents.append(own_parents + [-1] * (num_nodes - count))
            depths.append(own_depths + [1] * (num_nodes - count))
        tokens = [[self.random.randrange(CONFIG.vocab_size) for _ in range(num_nodes)] for _ in range(num_reqs)]
        is_valid = torch.tensor(parents) >= 0
        is_valid[:, 0] = True
        places = (torch.tensor(tokens), torch.tensor(parents), torch.tensor(depths), is_valid)
        return DraftTree(*places, 3, num_nodes, row_counts if is_ragged else None)


def assert_same_memory(first: KVPool, second: KVPool) -> None:
    slots = slice(0, LAYOUT.padding_slot)
    for one, other in zip(first.target_layers, second.target_layers, strict=True):
        assert torch.equal(one.keys[slots], other.keys[slots])
        assert torch.equal(one.values[slots], other.values[slots])


@given(
    seed=st.integers(0, 10**6),
    num_trees=st.integers(0, 2),
    num_plain=st.integers(0, 2),
    num_chunks=st.integers(0, 2),
    num_nodes=st.integers(2, 9),
    is_ragged=st.booleans(),
)
def test_both_runners_compute_the_same(
    seed: int, num_trees: int, num_plain: int, num_chunks: int, num_nodes: int, is_ragged: bool
) -> None:
    if num_trees + num_plain + num_chunks == 0:
        num_plain = 1
    maker = StepMaker(seed)
    step = maker.step(num_trees, num_plain, num_chunks, num_nodes if num_trees else 1)
    tree = maker.tree(num_trees, num_nodes, is_ragged) if num_trees else None
    step = step.with_tree(tree)
    model, pools = new_target(), (new_pool(), new_pool())
    reference = ReferenceRunner(model, pools[0], InputBuilder(LAYOUT, torch.device("cpu")))
    runner = NativeRunner(model, pools[1])
    expected, states = reference.run(step, tree), runner.run(step, tree)
    assert len(states.hidden_states) == sum(map(step.num_rows, step.ordered))
    assert torch.equal(states.hidden_states, expected.hidden_states)
    assert torch.equal(states.features, expected.features)
    assert_same_memory(*pools)
    rows = list(range(1, len(states.hidden_states)))
    for chosen in ([0, *rows], rows or [0]):
        assert torch.equal(runner.logits(states, chosen), reference.logits(expected, chosen))
    if tree is not None:
        accepted = random_walk(maker, step, tree)
        reference.move_accepted(step, accepted)
        runner.move_accepted(step, accepted)
        assert_same_memory(*pools)


def random_walk(maker: StepMaker, step: StepLayout, tree: DraftTree) -> Accepted:
    """Some path from the root down in every tree, and none for requests without one."""
    nodes = torch.full((len(step.drawing), 3), -1)
    for index in range(len(step.tree_requests)):
        node, parents = 0, tree.parents[index].tolist()
        for depth in range(maker.random.randint(0, 3)):
            children = [child for child, parent in enumerate(parents) if parent == node]
            if not children:
                break
            node = maker.random.choice(children)
            nodes[index, depth] = node
    nothing = torch.zeros(len(step.drawing), dtype=torch.long)
    return Accepted(nodes, (nodes >= 0).sum(dim=1), nothing, nodes, nodes, None)


def test_the_runner_follows_the_kernels_of_the_model() -> None:
    builder = InputBuilder(LAYOUT, torch.device("cpu"))
    assert isinstance(runner_for(new_target(), new_pool(), builder), NativeRunner)


def test_rows_that_do_not_exist_are_refused() -> None:
    rows = native().RowBuilder(4, 1)
    with pytest.raises(IndexError, match="1 blocks do not reach slot 4"):
        rows.add_run([0], 3, [1, 2])
    with pytest.raises(IndexError, match="first position"):
        rows.add_run([0], 0, [1])
    with pytest.raises(IndexError, match="at least one slot"):
        native().RowBuilder(0, 0)
    tokens, depths = torch.tensor([1, 2, 3]), torch.tensor([0, 1, 1])
    for parents in ([-1, 0, 1], [-1, 2, 0]):
        wrong = torch.tensor(parents)
        with pytest.raises(IndexError, match="does not lie one below"):
            rows.add_tree([0], 1, 30, 3, tokens.data_ptr(), wrong.data_ptr(), depths.data_ptr())


@pytest.mark.parametrize("block", [LAYOUT.num_slots, -1])
def test_slots_beyond_the_memory_are_refused(block: int) -> None:
    rows = native().RowBuilder(LAYOUT.block_size, 0)
    rows.add_run([block], 0, [1])
    with pytest.raises(IndexError, match="slot"):
        new_target().forward_built(rows, new_pool().target_layers)


def test_moves_beyond_the_memory_are_refused() -> None:
    model, pool = new_target(), new_pool()
    for sources, targets in (([0], [LAYOUT.num_slots]), ([-1], [0])):
        with pytest.raises(IndexError, match="slot"):
            model.move_rows(pool.target_layers, sources, targets)
    with pytest.raises(ValueError, match="needs a target"):
        model.move_rows(pool.target_layers, [0, 1], [0])
