"""After any step all states equal a fresh computation of the committed tokens, and unwritten memory leaks nowhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aquiline.engine.engine import Engine
from aquiline.errors import ConsistencyError
from aquiline.models.kv_layer import KVLayer
from aquiline.request import Request, SamplingParams
from tests.engine.workloads import DRAFT_KINDS, Job, answers, make_engine, plain_answers, random_prompt, run_jobs
from tests.tiny import TinySettings

PENALISED = SamplingParams(seed=5, presence_penalty=0.5, max_tokens=20, ignore_eos=True)
Corruption = Callable[[Engine, Request], None]


def page_slot(engine: Engine, request: Request, position: int) -> int:
    return engine.pool.layout.page_slot(request.block_ids, position)


def add_to_rows(tensor: torch.Tensor, slot: int) -> None:
    with torch.inference_mode():
        tensor[slot] += 1e-6


def running_engine(kind: str = "eagle3", mode: str = "tree:2x2") -> tuple[Engine, Request]:
    """An engine in the middle of an answer, at least one draft row behind it."""
    engine = make_engine(TinySettings(mode, check_consistency=True), kind)
    engine.add_request("watched", random_prompt(9), PENALISED)
    for _ in range(3):
        engine.step()
    return engine, engine.scheduler.running[0]


def shift_target_keys(engine: Engine, request: Request) -> None:
    add_to_rows(engine.pool.target_layers[2].keys, page_slot(engine, request, 4))


def shift_target_values(engine: Engine, request: Request) -> None:
    add_to_rows(engine.pool.target_layers[0].values, page_slot(engine, request, request.num_computed_tokens - 1))


def shift_draft_keys(engine: Engine, request: Request) -> None:
    add_to_rows(engine.pool.draft_layers[0].keys, page_slot(engine, request, 1))


def shift_draft_values(engine: Engine, request: Request) -> None:
    add_to_rows(engine.pool.draft_layers[0].values, page_slot(engine, request, request.num_draft_rows))


def shift_pending_feature(engine: Engine, request: Request) -> None:
    assert engine.features is not None
    span = engine.features._pending[request.row][0]
    engine.features._pending[request.row][0] = span._replace(features=span.features + 1e-3)


def drop_pending_feature(engine: Engine, request: Request) -> None:
    assert engine.features is not None
    engine.features._pending[request.row].pop()


def count_a_token_twice(engine: Engine, request: Request) -> None:
    with torch.inference_mode():
        counts = engine._device._sampling._output_counts.table
        counts[1, request.output_token_ids[0]] += 1


def forget_computed_tokens(engine: Engine, request: Request) -> None:
    request.num_computed_tokens -= 1


CORRUPTIONS: list[tuple[Corruption, str]] = [
    (shift_target_keys, r"request watched: target KV of layer 2 \(keys\) differs .* at position 4"),
    (shift_target_values, r"target KV of layer 0 \(values\) differs"),
    (shift_draft_keys, r"draft KV of layer 0 \(keys\) differs .* at position 1"),
    (shift_draft_values, r"draft KV of layer 0 \(values\) differs"),
    (shift_pending_feature, "pending features differs"),
    (drop_pending_feature, "pending features: 0 rows are held, [1-9] are right"),
    (count_a_token_twice, "penalty counts differs"),
    (forget_computed_tokens, "pending features: [1-9] rows are held, [0-9] are right"),
]


@pytest.mark.parametrize("kind", DRAFT_KINDS)
@pytest.mark.parametrize(("corrupt", "message"), CORRUPTIONS, ids=lambda value: getattr(value, "__name__", ""))
def test_the_check_names_a_corrupted_state(corrupt: Corruption, message: str, kind: str) -> None:
    engine, request = running_engine(kind)
    engine.check_consistency()
    corrupt(engine, request)
    with pytest.raises(ConsistencyError, match=message):
        engine.check_consistency()


def test_the_check_finds_a_lost_block() -> None:
    engine, request = running_engine()
    engine.cache._ref_counts[request.block_ids[0]] += 1
    with pytest.raises(ConsistencyError, match="block cache"):
        engine.check_consistency()


def test_the_check_sees_unwritten_memory() -> None:
    engine, request = running_engine()
    with torch.inference_mode():
        engine.pool.target_layers[1].values[page_slot(engine, request, 2)] = float("nan")
    with pytest.raises(ConsistencyError, match=r"target KV of layer 1 \(values\) differs .* at position 2"):
        engine.check_consistency()


def unused_slots(engine: Engine) -> list[int]:
    """Slots that no committed token occupies: free pages, unfilled ends of tables, scratch and padding."""
    layout = engine.pool.layout
    used = set()
    for request in engine.scheduler.running:
        used |= {page_slot(engine, request, position) for position in range(request.num_tokens)}
    cached = {known.block_id for known in engine.cache._known.values()}
    used |= {block * layout.block_size + offset for block in cached for offset in range(layout.block_size)}
    return sorted(set(range(layout.num_slots)) - used)


def poison(layers: list[KVLayer], slots: list[int]) -> None:
    with torch.inference_mode():
        for layer in layers:
            layer.keys[slots] = float("nan")
            layer.values[slots] = float("nan")


@settings(max_examples=15, deadline=None)
@given(
    mode=st.sampled_from(
        ["off", "chain:3", "tree:3x2", "dynamic:steps=2,topk=3,nodes=5", "dynamic:steps=3,topk=3,nodes=8,survival=0.02"]
    ),
    kind=st.sampled_from(DRAFT_KINDS),
    block_size=st.sampled_from([1, 4, 16]),
    max_num_batched_tokens=st.sampled_from([3, 7, 64]),
)
def test_memory_that_is_poisoned_again_before_every_step_leaks_nowhere(
    mode: str, kind: str, block_size: int, max_num_batched_tokens: int
) -> None:
    engine = make_engine(
        TinySettings(
            mode,
            block_size=block_size,
            num_blocks=128 // block_size,
            max_num_seqs=3,
            max_num_batched_tokens=max_num_batched_tokens,
            check_consistency=True,
        ),
        kind,
    )
    jobs = [Job(random_prompt(5 + 6 * i), SamplingParams(seed=i, max_tokens=8, logprobs=1)) for i in range(3)]
    step = engine.step

    def poisoned_step():  # type: ignore[no-untyped-def]
        slots = unused_slots(engine)
        poison(engine.pool.target_layers, slots)
        poison(engine.pool.draft_layers, slots)
        return step()

    engine.step = poisoned_step  # type: ignore[method-assign]
    outputs = run_jobs(engine, jobs)
    assert [answers(outputs[str(index)]) for index in range(3)] == [plain_answers(job, kind) for job in jobs]


@pytest.mark.parametrize("kind", DRAFT_KINDS)
def test_a_prefix_left_by_a_plain_request_is_never_read_by_the_draft(kind: str) -> None:
    """Its target rows are valid, its draft rows were never written: reading one would bring NaN into the tree."""
    engine = make_engine(TinySettings("chain:3", check_consistency=True), kind)
    plain, speculating = (
        Job(random_prompt(13), SamplingParams(temperature=0, max_tokens=6, ignore_eos=True), speculate=speculate)
        for speculate in (False, True)
    )
    assert answers(run_jobs(engine, [plain])["0"]) == answers(run_jobs(engine, [speculating])["0"])


@pytest.mark.parametrize("kind", DRAFT_KINDS)
@pytest.mark.parametrize("mode", ["chain:4", "tree:3x2x1", "dynamic:steps=3,topk=2,nodes=6"])
def test_trees_are_made_of_numbers(mode: str, kind: str) -> None:
    """A draft that reads poison proposes by NaN scores: its children then do not depend on what it reads."""
    engine = make_engine(TinySettings(mode), kind)
    assert engine._draft is not None
    propose = engine._draft.logits
    num_rows = 0

    def checked(head_inputs: torch.Tensor) -> torch.Tensor:
        nonlocal num_rows
        logits = propose(head_inputs)
        num_rows += len(logits)
        assert not logits.isnan().any()
        return logits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._draft, "logits", checked)
        run_jobs(engine, [Job(random_prompt(7 + i), PENALISED) for i in range(3)])
    assert num_rows > 50
