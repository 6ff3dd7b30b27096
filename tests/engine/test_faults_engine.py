"""Scenarios in which speculative engines are known to break, played through the whole engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aquiline.engine.engine import Engine
from aquiline.errors import InvalidParameterError, PromptError, UserError
from aquiline.request import FinishReason, RequestOutput, SamplingParams
from aquiline.speculation import DynamicTree, StaticTree, parse_speculation
from tests.engine.strategies import spelt, tree_paths
from tests.engine.workloads import (
    Answer,
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
from tests.tiny import EOS, ScriptedDrafter, TinySettings

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
MODES = [
    "off",
    "chain:4",
    "tree:3x2x1",
    "dynamic:steps=3,topk=2,nodes=6,survival=0.02",
    "dynamic:steps=3,topk=2,nodes=6",
]


def scripted(settings: TinySettings, jobs: list[Job], period: int = 0) -> Engine:
    """An engine whose draft knows how the answers would go on without any stop rule."""
    unstopped = [
        replace(job, params=replace(job.params, stop=(), stop_token_ids=(), ignore_eos=True, max_tokens=20))
        for job in jobs
    ]
    engine = make_engine(settings)
    expected = [plain_answers(job) for job in unstopped]
    ScriptedDrafter.replace_in(engine, Script(histories_of(jobs, expected), period).chooser())
    return engine


@pytest.mark.parametrize("max_tokens", range(1, 8))
@pytest.mark.parametrize("stop_at", range(7))
def test_stop_token_and_cap_inside_one_accepted_run(stop_at: int, max_tokens: int) -> None:
    job = Job((9, 30, 2), replace(GREEDY, seed=3, temperature=1.0))
    free = plain_answers(job)[0].token_ids
    job = replace(job, params=replace(job.params, stop_token_ids=(free[stop_at],), max_tokens=max_tokens))
    answer = answers(run_jobs(scripted(TinySettings("chain:6", check_consistency=True), [job]), [job])["0"])[0]
    first_stop = free.index(free[stop_at])
    if first_stop < max_tokens:
        assert (answer.finish_reason, answer.stop_reason) == (FinishReason.STOP, free[stop_at])
        assert answer.token_ids == free[: first_stop + 1]
    else:
        assert (answer.finish_reason, answer.stop_reason) == (FinishReason.LENGTH, None)
        assert answer.token_ids == free[:max_tokens]


@pytest.mark.parametrize("start", range(8))
@pytest.mark.parametrize("length", [1, 2, 5])
def test_stop_string_anywhere_in_runs_of_eight(start: int, length: int) -> None:
    job = Job((9, 30, 2), replace(GREEDY, seed=3, temperature=1.0))
    text = plain_answers(job)[0].text
    stop = text[start : start + length]
    job = replace(job, params=replace(job.params, stop=(stop,)))
    answer = answers(run_jobs(scripted(TinySettings("chain:7", check_consistency=True), [job]), [job])["0"])[0]
    assert answer.text == text[: text.index(stop)]
    assert answer.stop_reason == stop
    assert answer == plain_answers(job)[0]


def test_a_penalty_on_a_repeating_answer_works_as_without_speculation() -> None:
    repeating = replace(GREEDY, logit_bias={11: 6.0}, max_tokens=10)
    plain = plain_answers(Job((1, 2), repeating))[0].token_ids
    assert len(set(plain)) < 10
    for penalty in (2.0, -2.0):
        job = Job((1, 2), replace(repeating, frequency_penalty=penalty))
        expected = plain_answers(job)
        assert penalty < 0 or expected[0].token_ids != plain
        for mode in MODES[1:]:
            assert answers(run_jobs(scripted(TinySettings(mode), [job]), [job])["0"]) == expected


def test_tokens_accepted_together_are_penalised_in_the_next_step() -> None:
    job = Job((1, 2), replace(GREEDY, presence_penalty=2.0, frequency_penalty=2.0, repetition_penalty=1.8))
    engine = scripted(TinySettings("chain:3", check_consistency=True), [job])
    output = run_jobs(engine, [job])["0"]
    assert output.outputs[0].speculation.acceptance_length > 2
    assert answers(output) == plain_answers(job)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("logprobs", "prompt_logprobs"),
    [(None, None), (0, None), (None, 0), (20, 20)],
    ids=["none", "output", "prompt", "both"],
)
def test_log_probabilities_of_prompt_and_output(logprobs: int | None, prompt_logprobs: int | None, mode: str) -> None:
    job = Job(
        random_prompt(9), SamplingParams(seed=1, max_tokens=8, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
    )
    output = run_jobs(make_engine(TinySettings(mode)), [job])["0"]
    assert answers(output) == plain_answers(job)
    entries = output.outputs[0].logprobs
    assert (entries is None) == (logprobs is None)
    assert (output.prompt_logprobs is None) == (prompt_logprobs is None)
    if entries is not None:
        assert [entry.token_id for entry in entries] == list(output.outputs[0].token_ids)
        assert all(entry.logprob < 0 and len(entry.top) == logprobs for entry in entries)
    if output.prompt_logprobs is not None:
        first, *others = output.prompt_logprobs
        assert first is None
        assert [entry.token_id for entry in others if entry is not None] == list(job.prompt[1:])


def test_every_accepted_field_at_once_with_speculation() -> None:
    params = SamplingParams(
        temperature=0.9, top_p=0.9, top_k=30, min_p=0.01, repetition_penalty=1.2, presence_penalty=0.3,
        frequency_penalty=0.2, logit_bias={4: 1.5}, allowed_token_ids=range(1, 61), banned_token_ids=(9,), min_tokens=2,
        max_tokens=9, stop=("zz",), include_stop_str_in_output=True, stop_token_ids=(13,), skip_special_tokens=False,
        seed=5, n=2, logprobs=3, prompt_logprobs=2,
    )  # fmt: skip
    for mode in MODES:
        job = Job(random_prompt(6), params)
        assert answers(run_jobs(make_engine(TinySettings(mode)), [job])["0"]) == plain_answers(job)


@settings(max_examples=25, deadline=None)
@given(paths=tree_paths(max_nodes=12, max_depth=6), block_size=st.sampled_from([1, 4, 16]), num_jobs=st.integers(1, 5))
def test_trees_of_any_shape_page_size_and_batch(paths: list[tuple[int, ...]], block_size: int, num_jobs: int) -> None:
    jobs = [Job(random_prompt(4 + index, index), replace(GREEDY, max_tokens=9)) for index in range(num_jobs)]
    config = TinySettings(
        spelt(paths), block_size=block_size, num_blocks=160 // block_size, max_num_seqs=5, check_consistency=True
    )
    engine = scripted(config, jobs, period=4)
    outputs = run_jobs(engine, jobs)
    assert [answers(outputs[str(index)]) for index in range(num_jobs)] == [plain_answers(job) for job in jobs]
    assert_nothing_left(engine)


ENDINGS: dict[str, SamplingParams] = {
    "max_tokens": GREEDY,
    "one_token": replace(GREEDY, max_tokens=1),
    "stop_string": replace(GREEDY, stop=("c", "e", "d")),
    "stop_token": replace(GREEDY, stop_token_ids=tuple(range(0, 60, 2))),
    "end_of_sequence": replace(GREEDY, ignore_eos=False, logit_bias={EOS: 5.0}),
    "context": replace(GREEDY, max_tokens=None),
}


@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ending", ENDINGS)
def test_no_block_is_lost_however_requests_end(ending: str, mode: str, block_size: int) -> None:
    engine = make_engine(TinySettings(mode, block_size=block_size, max_model_len=26, check_consistency=True))
    jobs = [Job(random_prompt(6 + index, index), ENDINGS[ending], arrival=index) for index in range(3)]
    for _ in range(2):
        outputs = run_jobs(engine, jobs)
        assert all(output.finished for output in outputs.values())
        assert_nothing_left(engine)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps_before", range(6))
def test_an_abort_in_any_phase_frees_everything_and_disturbs_nobody(steps_before: int, mode: str) -> None:
    """With 9 rows a step, the long prompt is queued, in the middle of its chunks, or decoding when it is aborted."""
    engine = make_engine(TinySettings(mode, max_num_batched_tokens=9, check_consistency=True))
    jobs = [
        Job(random_prompt(3, seed=1), GREEDY),
        Job(random_prompt(21), replace(GREEDY, n=2), abort=steps_before),
        Job((*random_prompt(21)[:12], 1, 2), GREEDY, arrival=2),
    ]
    outputs = run_jobs(engine, jobs)
    for index in (0, 2):
        assert answers(outputs[str(index)]) == plain_answers(jobs[index])
    assert {sample.finish_reason for sample in outputs["1"].outputs} == {FinishReason.ABORT}
    assert_nothing_left(engine)


def test_the_pages_of_an_aborted_request_serve_the_next_one_at_once() -> None:
    engine = make_engine(TinySettings("tree:2x2", num_blocks=6, prefix_cache=False, check_consistency=True))
    for index in range(6):
        engine.add_request(str(index), random_prompt(9, index), GREEDY)
        for _ in range(1 + index % 3):
            engine.step()
        aborted = engine.abort(str(index))
        assert aborted is not None
        assert aborted.finished
        assert_nothing_left(engine)


def test_a_finished_or_unknown_request_cannot_be_aborted() -> None:
    engine = make_engine(TinySettings("chain:3"))
    run_jobs(engine, [Job((1, 2), GREEDY)])
    assert engine.abort("0") is None
    assert engine.abort("nobody") is None


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("num_seqs", [1, 3])
def test_larger_and_smaller_batches_in_turn(mode: str, num_seqs: int) -> None:
    engine = make_engine(TinySettings(mode, max_num_seqs=8, num_blocks=128, check_consistency=True))
    for size in (8, num_seqs, 8):
        jobs = [
            Job(random_prompt(3 + index, size * 10 + index), replace(GREEDY, max_tokens=6)) for index in range(size)
        ]
        outputs = run_jobs(engine, jobs)
        assert [answers(outputs[str(index)]) for index in range(size)] == [plain_answers(job) for job in jobs]


def test_twenty_requests_with_one_beginning_equal_cold_runs() -> None:
    common = random_prompt(19)
    jobs = [
        Job((*common[: 19 - index % 5], index), replace(GREEDY, max_tokens=5), arrival=index // 3)
        for index in range(20)
    ]
    engine = make_engine(TinySettings("tree:2x2", max_num_seqs=6, num_blocks=40, check_consistency=True))
    outputs = run_jobs(engine, jobs)
    assert [answers(outputs[str(index)]) for index in range(20)] == [plain_answers(job) for job in jobs]
    assert sum(output.num_cached_tokens for output in outputs.values()) > 100
    assert_nothing_left(engine)


def test_rejected_drafts_at_a_page_border_leave_the_page_clean() -> None:
    """Every tree reaches over the border of a page, and is rejected; the next turn reads that page."""
    engine = make_engine(TinySettings("chain:4", block_size=4, check_consistency=True))
    ScriptedDrafter.replace_in(engine, lambda request, position, rank, own: (own + 31) % 60)
    first = Job(random_prompt(7), GREEDY)
    output = run_jobs(engine, [first])["0"]
    second = Job((*first.prompt, *output.outputs[0].token_ids, 5), GREEDY)
    again = run_jobs(engine, [second])["0"]
    assert again.num_cached_tokens == 16
    assert answers(again) == plain_answers(second)


def test_an_acceptance_of_a_copying_draft_is_noticed_when_it_falls() -> None:
    job = Job(random_prompt(8), replace(GREEDY, max_tokens=13))
    good = run_jobs(scripted(TinySettings("chain:3"), [job]), [job])["0"].outputs[0].speculation
    worse = run_jobs(scripted(TinySettings("chain:3"), [job], period=2), [job])["0"].outputs[0].speculation
    assert good.acceptance_length == 13 / 4
    assert worse.acceptance_length < 2.2


def test_siblings_with_different_continuations_follow_their_own_path() -> None:
    """Penalties of a node count the tokens of its own path only, although all siblings are verified in one forward."""
    params = replace(GREEDY, presence_penalty=2.0, repetition_penalty=2.0, max_tokens=9)
    job = Job(random_prompt(5), params)
    right = histories_of([job], [plain_answers(job)])["0"]
    engine = make_engine(TinySettings("tree:2x2x1", check_consistency=True))
    # The first sibling holds a token that comes later on the right path: counted there, it would be penalised.
    ScriptedDrafter.replace_in(
        engine,
        lambda request, position, rank, own: right[min(position + (rank == 0), len(right) - 1)],
    )
    output = run_jobs(engine, [job])["0"]
    assert answers(output) == plain_answers(job)
    assert output.outputs[0].speculation.num_accepted_draft_tokens > 0


BAD_REQUESTS: dict[str, tuple[tuple[int, ...], SamplingParams, type[UserError], str]] = {
    "empty_prompt": ((), GREEDY, PromptError, "no tokens"),
    "prompt_too_long": (random_prompt(40), GREEDY, PromptError, "40 tokens; at most 39"),
    "negative_id": ((3, -1), GREEDY, PromptError, "holds -1; .* 0 to 60"),
    "id_beyond_vocabulary": ((61,), GREEDY, PromptError, "holds 61; .* 0 to 60"),
    "bias_beyond_vocabulary": ((1,), replace(GREEDY, logit_bias={61: 1.0}), InvalidParameterError, "logit_bias"),
    "allowed_beyond_vocabulary": (
        (1,),
        replace(GREEDY, allowed_token_ids=(99,)),
        InvalidParameterError,
        "allowed_token_ids names token id 99",
    ),
    "everything_banned": ((1,), replace(GREEDY, banned_token_ids=range(61)), InvalidParameterError, "bans every token"),
    "id_in_use": ((1,), GREEDY, InvalidParameterError, "'0' is in use"),
}


@pytest.mark.parametrize("mode", MODES[:2])
@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_a_bad_request_is_refused_and_the_engine_serves_on(case: str, mode: str) -> None:
    prompt, params, error, message = BAD_REQUESTS[case]
    engine = make_engine(TinySettings(mode, max_model_len=40, check_consistency=True))
    job = Job((1, 2, 3), GREEDY)
    engine.add_request("0", job.prompt, job.params)
    engine.step()
    with pytest.raises(error, match=message) as caught:
        engine.add_request("0" if case == "id_in_use" else "bad", prompt, params)
    assert "\n" not in str(caught.value)
    outputs: dict[str, RequestOutput] = {}
    while engine.has_unfinished:
        outputs.update((output.request_id, output) for output in engine.step())
    assert list(outputs) == ["0"]
    assert answers(outputs["0"]) == plain_answers(job)
    assert_nothing_left(engine)


@pytest.mark.parametrize(
    ("first", "second"), [(("a/1", 1), ("a", 2)), (("a", 2), ("a/0", 1))], ids=["later", "earlier"]
)
def test_ids_of_samples_and_requests_cannot_clash(first: tuple[str, int], second: tuple[str, int]) -> None:
    engine = make_engine(TinySettings("chain:2"))
    engine.add_request(first[0], (1, 2), replace(GREEDY, n=first[1]))
    with pytest.raises(InvalidParameterError, match="is in use"):
        engine.add_request(second[0], (1, 2), replace(GREEDY, n=second[1]))
    outputs: dict[str, RequestOutput] = {}
    while engine.has_unfinished:
        outputs.update((output.request_id, output) for output in engine.step())
    assert list(outputs) == [first[0]]
    assert_nothing_left(engine)


def test_a_tree_wider_than_the_drafts_vocabulary_is_refused_at_start() -> None:
    with pytest.raises(InvalidParameterError, match="41 children at one node; the draft knows only 40 tokens"):
        make_engine(TinySettings("tree:41"))


@pytest.mark.parametrize("mode", MODES)
def test_an_engine_without_any_proposer_decodes_plainly(mode: str) -> None:
    with_draft = make_engine(TinySettings(mode))
    models = replace(with_draft._models, draft=None)
    engine = Engine(models, TinySettings(mode, check_consistency=True, lookup="off").engine_config())
    job = Job(random_prompt(7), GREEDY)
    output = run_jobs(engine, [job])["0"]
    assert answers(output) == plain_answers(job)
    assert output.outputs[0].speculation.num_draft_tokens == 0
    assert_nothing_left(engine)


@pytest.mark.parametrize("budget", [4, 5, 7, 10])
@pytest.mark.parametrize("mode", MODES[1:])
def test_a_small_step_shrinks_trees_and_changes_nothing(mode: str, budget: int) -> None:
    jobs = [Job(random_prompt(5 + index, index), replace(GREEDY, max_tokens=6)) for index in range(4)]
    engine = make_engine(TinySettings(mode, max_num_batched_tokens=budget, check_consistency=True))
    outputs = run_jobs(engine, jobs)
    assert [answers(outputs[str(index)]) for index in range(4)] == [plain_answers(job) for job in jobs]


def test_one_request_gets_one_draft_forward_per_level() -> None:
    """Off must cost no draft work at all, and a tree of depth d costs one extension and d - 1 levels."""
    for mode, num_forwards in (("off", 0), ("chain:4", 4), ("tree:3x2x1", 3), ("tree:5", 1)):
        engine = make_engine(TinySettings(mode))
        engine.add_request("0", (1, 2, 3), GREEDY)
        engine.step()
        calls = 0
        draft = engine._draft
        if draft is not None:
            forward = draft.forward

            def counting(*args, forward=forward):  # type: ignore[no-untyped-def]
                nonlocal calls
                calls += 1
                return forward(*args)

            draft.forward = counting  # type: ignore[method-assign]
        engine.step()
        if draft is not None:
            del draft.forward
        assert calls == num_forwards


def test_shapes_of_a_step_come_from_the_schedule_alone() -> None:
    """Rows of a verify forward: nodes of the shape for every request that grows a tree, however much is accepted."""
    shape = parse_speculation("tree:2x2").shape
    assert isinstance(shape, StaticTree | DynamicTree)
    job = Job((1, 2, 3), GREEDY)
    engine = scripted(TinySettings("tree:2x2"), [job], period=3)
    sizes: list[int] = []
    target = engine._models.target
    forward = target.forward

    def watched(rows, memory):  # type: ignore[no-untyped-def]
        sizes.append(len(rows.token_ids))
        return forward(rows, memory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "forward", watched)
        run_jobs(engine, [job])
    assert sizes[0] == 3
    assert set(sizes[1:-1]) == {shape.num_draft_tokens + 1}


def test_text_grows_and_ends_as_one_piece() -> None:
    job = Job(random_prompt(4), replace(GREEDY, stop=("never in here",), n=2, temperature=1.0, seed=1))
    engine = make_engine(TinySettings("tree:3x2", check_consistency=True))
    engine.add_request("0", job.prompt, job.params)
    texts = ["", ""]
    last: list[Answer] = []
    while engine.has_unfinished:
        for output in engine.step():
            for index, sample in enumerate(output.outputs):
                assert sample.text.startswith(texts[index])
                texts[index] = sample.text
            last = answers(output)
    assert last == plain_answers(job)
    assert all(texts)
