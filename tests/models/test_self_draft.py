"""A head that copies its target is accepted to full depth in every mode of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from aquiline.config import AcceptanceRule
from aquiline.engine.draft_inputs import DraftInputBuilder, ExtendRows, PrefixView
from aquiline.engine.engine import Engine
from aquiline.engine.feature_store import FeatureStore
from aquiline.engine.trace import TreeTrace
from aquiline.models.eagle import DraftStates, EagleModel
from aquiline.models.llama import ForwardRows
from aquiline.request import Request, SamplingParams
from tests.models.table_models import NUM_CODES, continue_by_table, eagle1_copy, eagle3_copy, table_target
from tests.tiny import TinySettings, run_prompts, tiny_engine, token_ids

KINDS = ("eagle1", "eagle3")
GREEDY = SamplingParams(temperature=0, max_tokens=40)
SHAPES = ("chain:1", "chain:4", "chain:7", "tree:2x2x1", "tree:3x1", "paths:0,1,00,01,000", "paths:0,1,00,10")
MODES: dict[str, TinySettings] = {
    **{shape: TinySettings(shape) for shape in SHAPES},
    "dynamic": TinySettings("dynamic:steps=4,topk=2,nodes=8"),
    "dynamic_chain": TinySettings("dynamic:steps=3,topk=1,nodes=3"),
    **{f"block_size_{size}": TinySettings("chain:4", block_size=size, num_blocks=256 // size) for size in (1, 16)},
    **{f"chunks_of_{size}": TinySettings("chain:4", max_num_batched_tokens=size, max_num_seqs=1) for size in (5, 7)},
    "chunks_beside_decoding": TinySettings("tree:2x1", max_num_batched_tokens=16, max_num_seqs=3),
    "without_prefix_cache": TinySettings("chain:4", prefix_cache=False),
    "one_after_another": TinySettings("chain:4", max_num_seqs=1),
    "multi_round": TinySettings("tree:2x2x1", acceptance="multi_round"),
}
with_kinds = pytest.mark.parametrize("kind", KINDS)


def table_engine(kind: str, settings: TinySettings, confidence: float = 12.0) -> Engine:
    target = table_target(confidence, for_eagle1=kind == "eagle1")
    return tiny_engine(settings, target, eagle1_copy(target) if kind == "eagle1" else eagle3_copy(target), ())


def random_prompt(length: int, seed: int) -> list[int]:
    codes = torch.randint(0, NUM_CODES, (length,), generator=torch.Generator().manual_seed(seed))
    return (2 * codes + 1).tolist()


def record_traces(engine: Engine) -> list[TreeTrace]:
    traces: list[TreeTrace] = []
    engine.on_trace = traces.append
    return traces


def depth_of(trace: TreeTrace) -> int:
    """Levels that the tree offers below its root."""
    depths = [0]
    for parent in trace.parents[1:]:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return max(depths)


def shortfall(engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> int:
    """Levels offered by the trees of these prompts that were not accepted."""
    traces = record_traces(engine)
    run_prompts(engine, prompts, params)
    assert traces
    return sum(depth_of(trace) - len(trace.accepted_nodes) for trace in traces)


def most_steps(num_tokens: int, depth: int) -> int:
    """The prompt's last step draws one token; each later one commits depth + 1 while there is room.

    Where the prompt's last step has but one row, it has a tree too.
    """
    return 1 + -(-(num_tokens - 1) // (depth + 1))


@with_kinds
@pytest.mark.parametrize("mode", MODES)
def test_copy_of_the_target_is_accepted_to_full_depth(kind: str, mode: str) -> None:
    settings = MODES[mode]
    engine = table_engine(kind, settings)
    traces = record_traces(engine)
    prompts = [random_prompt(length, seed=length) for length in (23, 8, 33, 16, 9)]
    outputs = run_prompts(engine, prompts, GREEDY)
    assert token_ids(outputs) == [tuple(continue_by_table(prompt, 40)) for prompt in prompts]
    assert all(len(trace.accepted_nodes) == depth_of(trace) for trace in traces)
    shape = settings.engine_config().speculative.mode.shape
    assert shape is not None
    for output in outputs:
        assert output.outputs[0].speculation.num_verify_steps <= most_steps(40, shape.depth)


@with_kinds
@pytest.mark.parametrize("acceptance", ["keyed", "multi_round"])
@pytest.mark.parametrize("shape", ["chain:4", "tree:2x2x1"])
def test_copy_is_accepted_at_any_temperature(kind: str, acceptance: AcceptanceRule, shape: str) -> None:
    """Shared noise draws the same token twice; the multi-round rule accepts equal probabilities."""
    engine = table_engine(kind, TinySettings(shape, acceptance), confidence=1.5)
    traces = record_traces(engine)
    prompts = [random_prompt(length, seed=length) for length in (11, 30, 19)]
    params = [SamplingParams(temperature=1.0, seed=seed, max_tokens=40) for seed in range(3)]
    outputs = run_prompts(engine, prompts, params)
    greedy = [tuple(continue_by_table(prompt, 40)) for prompt in prompts]
    assert all(drawn != best for drawn, best in zip(token_ids(outputs), greedy, strict=True))
    assert all(len(trace.accepted_nodes) == depth_of(trace) for trace in traces)


@with_kinds
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_prefix_hits_lose_no_acceptance(kind: str, block_size: int) -> None:
    engine = table_engine(kind, TinySettings("chain:4", block_size=block_size, num_blocks=256 // block_size))
    shared = random_prompt(40, seed=1)
    assert shortfall(engine, [shared], GREEDY) == 0
    traces = record_traces(engine)
    prompts = [shared, shared[:33], shared[:32] + random_prompt(9, seed=2), shared[:16] + random_prompt(3, seed=3)]
    outputs = run_prompts(engine, prompts, GREEDY)
    assert all(output.num_cached_tokens >= 16 for output in outputs)
    assert token_ids(outputs) == [tuple(continue_by_table(prompt, 40)) for prompt in prompts]
    assert all(len(trace.accepted_nodes) == depth_of(trace) for trace in traces)
    assert all(output.outputs[0].speculation.num_verify_steps <= most_steps(40, 4) for output in outputs)


@with_kinds
def test_preempted_requests_lose_no_acceptance(kind: str) -> None:
    engine = table_engine(kind, TinySettings("chain:4", num_blocks=24))
    preempted: list[Request] = []
    plan = engine.scheduler.schedule

    def schedule() -> object:
        batch = plan()
        preempted.extend(batch.preempted)
        return batch

    engine.scheduler.schedule = schedule  # type: ignore[method-assign, assignment]
    prompts = [random_prompt(length, seed=length) for length in (23, 20, 25)]
    assert shortfall(engine, prompts, GREEDY) == 0
    assert preempted


def rotate_nodes_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    right = DraftInputBuilder.level_rows

    def wrong(self: DraftInputBuilder, view: PrefixView, tokens: Tensor, paths: Tensor, depth: int) -> ForwardRows:
        rows = right(self, view, tokens, paths, depth)
        return replace(rows, positions=rows.positions + 1)

    monkeypatch.setattr(DraftInputBuilder, "level_rows", wrong)


def change_extension(monkeypatch: pytest.MonkeyPatch, change: Callable[[ExtendRows], ExtendRows]) -> None:
    right = DraftInputBuilder.extend_rows
    monkeypatch.setattr(
        DraftInputBuilder, "extend_rows", lambda self, requests, counts: change(right(self, requests, counts))
    )


def rotate_by_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of true features turned by their slot's number while nodes are turned by one less."""
    change_extension(
        monkeypatch, lambda rows: replace(rows, forward=replace(rows.forward, positions=rows.forward.positions + 1))
    )


def repeat_root_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row pairs its feature with the token of the feature's own position."""
    change_extension(
        monkeypatch,
        lambda rows: replace(rows, forward=replace(rows.forward, token_ids=rows.forward.token_ids.roll(1))),
    )


def change_features(monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor]) -> None:
    right = FeatureStore.take
    monkeypatch.setattr(FeatureStore, "take", lambda self, rows: change(right(self, rows)))


def shift_features(monkeypatch: pytest.MonkeyPatch) -> None:
    change_features(monkeypatch, lambda features: features.roll(1, dims=0))


def drop_last_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest feature is lost and the one before stands in for it."""
    change_features(monkeypatch, lambda features: torch.cat((features[:-1], features[-2:-1]))[-len(features) :])


def keep_scratch_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the root's row is made from a true feature; accepted tokens leave what their slot held before."""
    right = EagleModel.forward

    def wrong(self: EagleModel, rows: ForwardRows, hidden_states: Tensor, memory: Sequence[object]) -> DraftStates:
        group = rows.attention.groups[0]
        if group.path_slots is None and group.num_queries > 1:
            spare = memory[0].keys.shape[0] - 1  # type: ignore[attr-defined]
            slots = rows.slots.view(group.num_reqs, -1).clone()
            slots[:, :-1] = spare
            rows = replace(rows, slots=slots.flatten())
        return right(self, rows, hidden_states, memory)  # type: ignore[arg-type]

    monkeypatch.setattr(EagleModel, "forward", wrong)


def feed_feature_of_root_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every node is fed the hidden state its own forward began with instead of its parent's output."""
    right = EagleModel.forward

    def wrong(self: EagleModel, rows: ForwardRows, hidden_states: Tensor, memory: Sequence[object]) -> DraftStates:
        states = right(self, rows, hidden_states, memory)  # type: ignore[arg-type]
        return DraftStates(states.head_inputs, hidden_states)

    monkeypatch.setattr(EagleModel, "forward", wrong)


MISTAKES = (
    rotate_nodes_too_far,
    rotate_by_slot,
    repeat_root_token,
    shift_features,
    drop_last_feature,
    keep_scratch_rows,
    feed_feature_of_root_to_all,
)


@with_kinds
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: str(mistake.__name__))
def test_mistake_in_the_draft_path_is_noticed(
    monkeypatch: pytest.MonkeyPatch, kind: str, mistake: Callable[[pytest.MonkeyPatch], None]
) -> None:
    prompts = [random_prompt(23, seed=23)]
    settings = TinySettings("chain:4")
    assert shortfall(table_engine(kind, settings), prompts, GREEDY) == 0
    mistake(monkeypatch)
    assert shortfall(table_engine(kind, settings), prompts, GREEDY) > 10


@pytest.mark.parametrize("swap", [(0, 1), (0, 2)], ids=str)
def test_features_in_another_order_are_noticed(monkeypatch: pytest.MonkeyPatch, swap: tuple[int, int]) -> None:
    def swapped(features: Tensor) -> Tensor:
        parts = list(features.chunk(3, dim=-1))
        parts[swap[0]], parts[swap[1]] = parts[swap[1]], parts[swap[0]]
        return torch.cat(parts, dim=-1)

    prompts = [random_prompt(23, seed=23)]
    change_features(monkeypatch, swapped)
    assert shortfall(table_engine("eagle3", TinySettings("chain:4")), prompts, GREEDY) > 10
