"""Drafts that are always right, always wrong, or wrong in a chosen place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aquiline.engine.engine import Engine
from aquiline.engine.trace import TreeTrace
from aquiline.models.eagle import EagleModel
from aquiline.models.llama import LlamaModel
from aquiline.models.loading import expected_draft_tensors, expected_target_tensors
from aquiline.request import FinishReason, Request, SamplingParams
from aquiline.speculation_figures import SpeculationFigures
from tests.engine.strategies import spelt, tree_paths
from tests.engine.workloads import (
    Job,
    Script,
    answers,
    assert_nothing_left,
    histories_of,
    make_engine,
    plain_answers,
    random_prompt,
    run_jobs,
)
from tests.tiny import (
    EOS,
    VOCAB,
    ScriptedDrafter,
    TinySettings,
    finish_all,
    random_tensors,
    tiny_draft,
    tiny_eagle_config,
    tiny_engine,
    tiny_llama_config,
    tiny_target,
)

LONG = Job(random_prompt(10), SamplingParams(seed=1, max_tokens=25, ignore_eos=True, logprobs=1))
GREEDY = replace(LONG, params=replace(LONG.params, temperature=0))
DEPTHS = {"chain:1": 1, "chain:4": 4, "tree:2x1x1": 3, "tree:3x2": 2, "dynamic:steps=2,topk=2,nodes=6": 2}


def figures(engine: Engine, job: Job) -> SpeculationFigures:
    """Run a job, check its answer, and tell what speculation did for it."""
    output = run_jobs(engine, [job])["0"]
    assert answers(output) == plain_answers(job)
    assert_nothing_left(engine)
    return output.outputs[0].speculation


def perfect_engine(settings: TinySettings, job: Job) -> Engine:
    """An engine whose draft knows the answer of `job`."""
    engine = make_engine(settings)
    ScriptedDrafter.replace_in(engine, Script(histories_of([job], [plain_answers(job)])).chooser())
    return engine


@pytest.mark.parametrize("job", [LONG, GREEDY], ids=["random", "greedy"])
@pytest.mark.parametrize("mode", DEPTHS)
@pytest.mark.parametrize("max_num_batched_tokens", [15, 64])
@pytest.mark.parametrize("block_size", [1, 4])
def test_a_perfect_draft_is_accepted_to_full_depth(
    mode: str, job: Job, max_num_batched_tokens: int, block_size: int
) -> None:
    depth = DEPTHS[mode]
    engine = perfect_engine(
        TinySettings(
            mode, block_size=block_size, max_num_batched_tokens=max_num_batched_tokens, check_consistency=True
        ),
        job,
    )
    seen = figures(engine, job)
    # One token comes from the prefill, then every step gives the depth and the bonus token.
    assert seen.num_verify_steps == 1 + -(-(25 - 1) // (depth + 1))
    assert seen.num_accepted_draft_tokens == 25 - seen.num_verify_steps
    assert seen.acceptance_length <= depth + 1


@pytest.mark.parametrize("mode", DEPTHS)
def test_a_draft_that_is_always_wrong_costs_nothing_but_time(mode: str) -> None:
    engine = make_engine(TinySettings(mode, check_consistency=True))
    right = histories_of([LONG], [plain_answers(LONG)])["0"]

    def wrong(request: Request, position: int, rank: int, own: int) -> int:
        return (right[position] + 1 + rank) % VOCAB if position < len(right) else own

    ScriptedDrafter.replace_in(engine, wrong)
    seen = figures(engine, LONG)
    assert seen.num_accepted_draft_tokens == 0
    assert seen.acceptance_length == 1.0
    assert seen.num_draft_tokens > 0


@pytest.mark.parametrize("wrong_depth", [1, 2, 3, 4])
def test_acceptance_stops_where_the_draft_goes_wrong(wrong_depth: int) -> None:
    engine = make_engine(TinySettings("chain:4", check_consistency=True))
    right = histories_of([LONG], [plain_answers(LONG)])["0"]

    def chooser(request: Request, position: int, rank: int, own: int) -> int:
        depth = position - request.num_tokens + 1
        known = right[position] if position < len(right) else own
        return (known + 1) % VOCAB if depth == wrong_depth else known

    ScriptedDrafter.replace_in(engine, chooser)
    assert figures(engine, LONG).num_verify_steps == 1 + -(-24 // wrong_depth)


def test_the_draft_is_asked_for_consecutive_positions() -> None:
    engine = make_engine(TinySettings("chain:4"))
    script = Script(histories_of([LONG], [plain_answers(LONG)]))
    ScriptedDrafter.replace_in(engine, script.chooser())
    figures(engine, LONG)
    asked = script.asked_positions
    # The prompt has 10 tokens and the prefill draws the one at position 10; bonus tokens at 15, 20, .. are not drafted.
    assert asked[:8] == [11, 12, 13, 14, 16, 17, 18, 19]


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "random"])
@pytest.mark.parametrize("mode", ["chain:3", "tree:2x1x1", "dynamic:steps=3,topk=1,nodes=3"])
def test_a_draft_that_computes_what_the_target_computes_is_always_accepted(mode: str, temperature: float) -> None:
    engine = copying_engine(TinySettings(mode, check_consistency=True))
    params = SamplingParams(temperature=temperature, seed=4, max_tokens=21, ignore_eos=True)
    for index in range(3):
        engine.add_request(str(index), random_prompt(5 + 4 * index), params)
    for output in finish_all(engine).values():
        # One token from the prefill, then five steps of three draft tokens and the bonus token.
        assert output.outputs[0].speculation.num_verify_steps == 6
        assert output.outputs[0].speculation.num_accepted_draft_tokens == 15


def copying_engine(settings: TinySettings) -> Engine:
    """Target and EAGLE-1 draft whose layers add nothing: both turn the newest token's embedding into logits.

    Embeddings of length 1 per element pass the target's last norm unchanged, and the draft has no last norm.
    """
    config = tiny_llama_config()
    tensors = random_tensors(expected_target_tensors(config), seed=0)
    embedding = torch.nn.functional.rms_norm(tensors["model.embed_tokens.weight"], (config.hidden_size,))
    silent = {name: torch.zeros_like(t) for name, t in tensors.items() if "o_proj" in name or "down_proj" in name}
    ones = torch.ones(config.hidden_size)
    target = LlamaModel(
        config, {**tensors, **silent, "model.embed_tokens.weight": embedding, "model.norm.weight": ones}
    )
    draft_config = tiny_eagle_config(config, "eagle1")
    tensors = random_tensors(expected_draft_tensors(draft_config), seed=1)
    silent = {name: torch.zeros_like(t) for name, t in tensors.items() if "o_proj" in name or "down_proj" in name}
    identity = torch.eye(config.hidden_size)
    tensors |= {**silent, "fc.weight": torch.cat((identity, torch.zeros_like(identity)), dim=1)}
    tensors["draft_to_target_ids"] = torch.arange(config.vocab_size)
    return tiny_engine(settings, target, EagleModel(draft_config, tensors, target.embedding, target.head))


@settings(max_examples=25, deadline=None)
@given(data=st.data(), seed=st.integers(0, 3))
def test_a_larger_tree_never_accepts_less(data: st.DataObject, seed: int) -> None:
    larger = data.draw(tree_paths(max_nodes=10))
    smaller = larger[: data.draw(st.integers(1, len(larger)))]
    lucky_ranks = data.draw(st.lists(st.integers(0, 2), min_size=5, max_size=5))
    job = Job(random_prompt(6, seed), SamplingParams(seed=seed, max_tokens=8, ignore_eos=True))
    right = histories_of([job], [plain_answers(job)])["0"]

    def chooser(request: Request, position: int, rank: int, own: int) -> int:
        is_lucky = position < len(right) and rank == lucky_ranks[position % 5]
        return right[position] if is_lucky else (right[position % len(right)] + 1 + rank) % VOCAB

    accepted = [first_tree_step(spelt(paths), job, chooser) for paths in (smaller, larger)]
    assert accepted[0].committed_token_ids == accepted[1].committed_token_ids[: len(accepted[0].committed_token_ids)]


@settings(max_examples=25, deadline=None)
@given(data=st.data(), seed=st.integers(0, 50))
def test_a_larger_tree_of_the_real_draft_never_accepts_less(data: st.DataObject, seed: int) -> None:
    larger = data.draw(tree_paths(max_nodes=10))
    smaller = larger[: data.draw(st.integers(1, len(larger)))]
    job = Job((seed, 3), SamplingParams(seed=seed, max_tokens=8, ignore_eos=True))
    accepted = [first_tree_step(spelt(paths), job) for paths in (smaller, larger)]
    assert accepted[0].committed_token_ids == accepted[1].committed_token_ids[: len(accepted[0].committed_token_ids)]


def first_tree_step(mode: str, job: Job, chooser: Callable[[Request, int, int, int], int] | None = None) -> TreeTrace:
    """The first step in which the job has a tree."""
    engine = make_engine(TinySettings(mode))
    if chooser is not None:
        ScriptedDrafter.replace_in(engine, chooser)
    traces: list[TreeTrace] = []
    engine.on_trace = traces.append
    run_jobs(engine, [job])
    return traces[1]


def depth_of(trace: TreeTrace) -> int:
    """Of its deepest node."""
    depths = [0]
    for parent in trace.parents[1:]:
        depths.append(depths[parent] + 1)
    return max(depths)


def test_an_end_token_that_only_the_draft_proposes_ends_nothing() -> None:
    engine = make_engine(TinySettings("tree:2x2", check_consistency=True))
    job = replace(GREEDY, params=replace(GREEDY.params, ignore_eos=False, banned_token_ids=(EOS, 7)))
    ScriptedDrafter.replace_in(engine, lambda request, position, rank, own: (EOS, 7)[rank % 2])
    seen = figures(engine, job)
    assert seen.num_committed_tokens == 25
    assert seen.num_accepted_draft_tokens == 0


@pytest.mark.parametrize("offset", range(1, 11))
@pytest.mark.parametrize("mode", ["chain:4", "tree:2x2x1"])
def test_a_stop_token_at_any_place_of_an_accepted_run_ends_it_there(mode: str, offset: int) -> None:
    answer = plain_answers(GREEDY)[0].token_ids
    job = replace(GREEDY, params=replace(GREEDY.params, stop_token_ids=(answer[offset],)))
    seen = figures(perfect_engine(TinySettings(mode, check_consistency=True), job), job)
    assert seen.num_committed_tokens == answer.index(answer[offset]) + 1
    assert seen.num_accepted_draft_tokens <= seen.num_committed_tokens


@pytest.mark.parametrize("offset", range(6))
def test_an_end_of_sequence_inside_an_accepted_run(offset: int) -> None:
    """The script goes on behind it: what it proposes there must reach neither the user nor the figures."""
    target = tiny_target(aux_layer_ids=(0, 1, 3))
    answer = plain_answers(GREEDY)[0].token_ids
    end = answer[5 + offset]
    engine = tiny_engine(TinySettings("chain:4", check_consistency=True), target, tiny_draft(target), (end,))
    ScriptedDrafter.replace_in(engine, Script({"0": [*GREEDY.prompt, *answer]}).chooser())
    for ignores in (False, True):
        engine.add_request("0", GREEDY.prompt, replace(GREEDY.params, ignore_eos=ignores))
        sample = finish_all(engine)["0"].outputs[0]
        expected = answer if ignores else answer[: answer.index(end) + 1]
        assert sample.token_ids == expected
        assert sample.speculation.num_committed_tokens == len(expected)
        assert sample.speculation.num_accepted_draft_tokens <= len(expected)
        assert sample.finish_reason is (FinishReason.LENGTH if ignores else FinishReason.STOP)
        assert_nothing_left(engine)


@pytest.mark.parametrize("max_tokens", range(1, 13))
@pytest.mark.parametrize("mode", ["chain:4", "dynamic:steps=4,topk=2,nodes=8"])
def test_max_tokens_cuts_a_run_at_every_offset(mode: str, max_tokens: int) -> None:
    job = replace(GREEDY, params=replace(GREEDY.params, max_tokens=max_tokens))
    traces: list[TreeTrace] = []
    engine = perfect_engine(TinySettings(mode, check_consistency=True), job)
    engine.on_trace = traces.append
    seen = figures(engine, job)
    assert seen.num_committed_tokens == max_tokens
    # No node lies deeper than could still be committed: depth and bonus token together fill the rest.
    done = 0
    for trace in traces:
        depth = depth_of(trace)
        assert depth <= max(0, max_tokens - done - 1)
        done += len(trace.committed_token_ids)


@pytest.mark.parametrize("limit", range(11, 24))
def test_the_context_limit_ends_a_run_at_every_offset(limit: int) -> None:
    job = replace(GREEDY, params=replace(GREEDY.params, max_tokens=None))
    expected = plain_answers(job, max_model_len=limit)
    engine = make_engine(TinySettings("tree:2x2x1x1", max_model_len=limit, check_consistency=True))
    full = plain_answers(GREEDY)
    ScriptedDrafter.replace_in(engine, Script(histories_of([GREEDY], [full])).chooser())
    output = run_jobs(engine, [job])["0"]
    assert answers(output) == expected
    assert expected[0].finish_reason is FinishReason.LENGTH
    assert len(expected[0].token_ids) == limit - 10
    assert_nothing_left(engine)


@pytest.mark.parametrize("num_blocks", [3, 4, 5, 6])
def test_the_end_of_the_cache_ends_an_answer_like_the_context_limit(num_blocks: int) -> None:
    job = replace(GREEDY, params=replace(GREEDY.params, max_tokens=None))
    engine = make_engine(TinySettings("chain:4", num_blocks=num_blocks, check_consistency=True))
    output = run_jobs(engine, [job])["0"]
    assert answers(output) == plain_answers(job, max_model_len=4 * num_blocks)
    assert_nothing_left(engine)


@pytest.mark.parametrize("draft_limit", [5, 10, 11, 12, 14, 17, 21])
@pytest.mark.parametrize("mode", ["chain:4", "tree:2x2x1", "dynamic:steps=3,topk=2,nodes=6"])
def test_a_draft_with_a_shorter_context_stops_drafting_and_changes_nothing(mode: str, draft_limit: int) -> None:
    target = tiny_target(aux_layer_ids=(0, 1, 3))
    config = tiny_eagle_config(target.config)
    config = replace(config, layers=replace(config.layers, max_position=draft_limit))
    engine = tiny_engine(TinySettings(mode, check_consistency=True), target, tiny_draft(target, config))
    ScriptedDrafter.replace_in(engine, Script(histories_of([GREEDY], [plain_answers(GREEDY)])).chooser())
    traces: list[TreeTrace] = []
    engine.on_trace = traces.append
    output = run_jobs(engine, [GREEDY])["0"]
    assert answers(output) == plain_answers(GREEDY)
    # After the prefill the root is in slot 10, and the draft row of its child stands at rotary position 10.
    assert (output.outputs[0].speculation.num_draft_tokens > 0) == (draft_limit > 10)
    num_tokens = 10
    for trace in traces:
        depth = depth_of(trace)
        assert depth == 0 or num_tokens - 1 + depth - 1 < draft_limit
        num_tokens += len(trace.committed_token_ids)
    assert_nothing_left(engine)


def test_figures_add_up_over_a_mixed_batch() -> None:
    jobs = [
        Job(random_prompt(4 + i, i), SamplingParams(seed=i, max_tokens=5 + 3 * i, stop=("b",), n=1 + i % 2))
        for i in range(5)
    ]
    engine = make_engine(TinySettings("tree:3x2x1", max_num_seqs=3, check_consistency=True))
    expected = [plain_answers(job) for job in jobs]
    ScriptedDrafter.replace_in(engine, Script(histories_of(jobs, expected), period=2).chooser())
    traces: list[TreeTrace] = []
    engine.on_trace = traces.append
    outputs = run_jobs(engine, jobs)
    samples = [sample for output in outputs.values() for sample in output.outputs]
    for sample in samples:
        seen = sample.speculation
        assert seen.num_committed_tokens == len(sample.token_ids)
        assert 0.0 <= seen.acceptance_rate <= 1.0
        assert seen.acceptance_length <= 4
        assert seen.num_accepted_draft_tokens <= seen.num_committed_tokens
    assert sum(len(trace.committed_token_ids) for trace in traces) == sum(len(s.token_ids) for s in samples)
    assert sum(len(trace.parents) - 1 for trace in traces) == sum(s.speculation.num_draft_tokens for s in samples)
    kept = sum(min(len(trace.accepted_nodes), len(trace.committed_token_ids)) for trace in traces)
    assert kept == sum(s.speculation.num_accepted_draft_tokens for s in samples)
