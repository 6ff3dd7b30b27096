"""Looked-up tokens in a running engine: they change when tokens come, never which."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aquiline.config import LookupMode
from aquiline.engine.engine import Engine
from aquiline.request import FinishReason, SamplingParams
from tests.engine.strategies import FIXED_MODES, tiny_settings, workloads
from tests.engine.workloads import (
    DRAFT_KINDS,
    Job,
    answers,
    assert_nothing_left,
    make_engine,
    plain_answers,
    random_prompt,
    run_jobs,
    watch_preemptions,
)
from tests.tiny import TinySettings

SEVERAL = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
SPECULATING = [mode for mode in FIXED_MODES if mode != "off"]

# A bias towards few tokens makes a random model repeat itself.
FEW_TOKENS = {token_id: -100.0 for token_id in range(61) if token_id > 3}
REPEATING = [
    Job((1, 2, 3) * 4, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logit_bias=FEW_TOKENS)),
    Job((2, 1), SamplingParams(seed=3, max_tokens=24, ignore_eos=True, logit_bias=FEW_TOKENS, logprobs=1)),
    Job((3,), SamplingParams(seed=5, temperature=0.5, max_tokens=18, logit_bias=FEW_TOKENS, frequency_penalty=0.5)),
    Job(random_prompt(12, seed=4), SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, n=2, top_k=3)),
]


def without_draft(settings: TinySettings) -> Engine:
    models = make_engine(TinySettings())._models
    return Engine(replace(models, draft=None), settings.engine_config())


@SEVERAL
@given(st.data())
def test_random_work_gives_what_each_request_gives_alone_and_plainly(data: st.DataObject) -> None:
    jobs = data.draw(workloads())
    drawn = data.draw(tiny_settings(max(job.max_tokens for job in jobs)))
    lookup: LookupMode = "auto" if drawn.speculate == "off" else data.draw(st.sampled_from(("auto", "on")))
    history = data.draw(st.sampled_from((0, 0, 10, 200)))
    size = data.draw(st.sampled_from((1, 3, 16)))
    chosen = replace(drawn, lookup=lookup, lookup_tokens=size, lookup_history=history)
    engine = without_draft(chosen) if data.draw(st.booleans()) else make_engine(chosen)
    outputs = run_jobs(engine, jobs)
    for index, job in enumerate(jobs):
        if str(index) not in outputs:
            assert job.abort is not None
            continue
        for answer, sample in zip(answers(outputs[str(index)]), plain_answers(job), strict=True):
            if answer.finish_reason is FinishReason.ABORT:
                assert answer.token_ids == sample.token_ids[: len(answer.token_ids)]
            else:
                assert answer == sample
    assert_nothing_left(engine)


@pytest.mark.parametrize("has_draft", [True, False], ids=["draft", "no_draft"])
@pytest.mark.parametrize("mode", SPECULATING)
def test_every_mode_answers_like_plain_decoding(mode: str, has_draft: bool) -> None:
    chosen = TinySettings(mode, check_consistency=True, lookup="on")
    engine = make_engine(chosen) if has_draft else without_draft(chosen)
    outputs = run_jobs(engine, REPEATING)
    assert [answers(outputs[str(index)]) for index in range(len(REPEATING))] == [plain_answers(j) for j in REPEATING]
    figures = [sample.speculation for output in outputs.values() for sample in output.outputs]
    assert sum(part.num_lookup_tokens for part in figures) > 0
    for part in figures:
        assert 0 <= part.num_accepted_lookup_tokens <= part.num_lookup_tokens <= part.num_draft_tokens
        assert part.num_accepted_lookup_tokens <= part.num_accepted_draft_tokens
    if not has_draft:
        assert sum(part.num_accepted_draft_tokens for part in figures) > 10
        assert all(part.num_lookup_tokens == part.num_draft_tokens for part in figures)
    assert_nothing_left(engine)


@pytest.mark.parametrize("has_draft", [True, False], ids=["draft", "no_draft"])
def test_preempted_requests_look_up_as_if_never_disturbed(has_draft: bool) -> None:
    jobs = [
        Job((1, 2, 3, 1, 2, seed % 3), SamplingParams(seed=seed, max_tokens=14, ignore_eos=True, logit_bias=FEW_TOKENS))
        for seed in range(4)
    ]
    chosen = TinySettings("auto", block_size=2, num_blocks=18, check_consistency=True, lookup="on", lookup_tokens=4)
    engine = make_engine(chosen) if has_draft else without_draft(chosen)
    preempted = watch_preemptions(engine)
    outputs = run_jobs(engine, jobs)
    assert preempted
    assert [answers(outputs[str(index)]) for index in range(4)] == [plain_answers(job) for job in jobs]
    assert sum(sample.speculation.num_accepted_draft_tokens for o in outputs.values() for sample in o.outputs) > 5
    assert_nothing_left(engine)


def repeated_answer(max_tokens: int) -> Job:
    """Greedy over one token alone: the answer is that token over and over."""
    allowed = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, allowed_token_ids=(4,))
    return Job((4, 4), allowed)


@pytest.mark.parametrize("lookup_tokens", [1, 4, 7])
def test_a_text_that_repeats_is_accepted_to_full_depth(lookup_tokens: int) -> None:
    """4 4 and then 4 for ever: every looked-up token is right, and every step takes as many as it may."""
    steps = 5
    engine = without_draft(TinySettings(f"chain:{lookup_tokens}", lookup="on", check_consistency=True))
    output = run_jobs(engine, [repeated_answer(1 + steps * (lookup_tokens + 1))])["0"]
    figures = output.outputs[0].speculation
    assert set(output.outputs[0].token_ids) == {4}
    assert figures.num_verify_steps == 1 + steps
    assert figures.num_accepted_lookup_tokens == figures.num_lookup_tokens == steps * lookup_tokens


def test_what_others_were_answered_is_found_only_with_a_history() -> None:
    job = Job(random_prompt(9, seed=5), SamplingParams(temperature=0, max_tokens=16, ignore_eos=True))
    accepted = []
    for history in (0, 100):
        engine = without_draft(TinySettings("auto", lookup="on", lookup_history=history, prefix_cache=False))
        first, second = (run_jobs(engine, [job])["0"].outputs[0] for _ in range(2))
        assert first.token_ids == second.token_ids
        accepted.append((first.speculation.num_accepted_draft_tokens, second.speculation.num_accepted_draft_tokens))
    assert accepted[0][0] == accepted[0][1]
    assert accepted[1][1] >= 12


def test_nothing_is_looked_up_where_it_was_not_asked_for() -> None:
    for chosen in (
        TinySettings("chain:2"),
        TinySettings("auto", lookup="off"),
        TinySettings("off"),
        TinySettings("chain:2", "multi_round"),
    ):
        outputs = run_jobs(make_engine(chosen), REPEATING)
        assert all(sample.speculation.num_lookup_tokens == 0 for o in outputs.values() for sample in o.outputs)


def test_a_request_that_does_not_speculate_is_not_looked_up() -> None:
    engine = without_draft(TinySettings("auto", lookup="on"))
    outputs = run_jobs(engine, [replace(job, speculate=False) for job in REPEATING])
    assert all(sample.speculation.num_draft_tokens == 0 for o in outputs.values() for sample in o.outputs)


def test_lookup_goes_on_beyond_the_positions_of_the_draft() -> None:
    engine = make_engine(TinySettings("chain:1", lookup="on", check_consistency=True))
    engine.scheduler._limits._draft_max_position = 6
    output = run_jobs(engine, [repeated_answer(30)])["0"]
    assert answers(output) == plain_answers(repeated_answer(30))
    assert output.outputs[0].speculation.num_verify_steps < 20


@pytest.mark.parametrize("kind", DRAFT_KINDS)
def test_a_draft_of_any_kind_shares_its_tree(kind: str) -> None:
    engine = make_engine(TinySettings("tree:2x2", lookup="on", check_consistency=True), kind)
    outputs = run_jobs(engine, REPEATING)
    expected = [plain_answers(job, kind) for job in REPEATING]
    assert [answers(outputs[str(index)]) for index in range(len(REPEATING))] == expected
