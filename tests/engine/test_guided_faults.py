"""What goes wrong elsewhere where grammars meet speculation: each case once."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy
import pytest

from aquiline.engine.engine import Engine
from aquiline.engine.grammar import Matcher
from aquiline.engine.guidance import MaskTable, TreeNodes, fill_tree
from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams
from aquiline.request import FinishReason, Request, SamplingParams
from tests.engine.guided_work import EOS, GUIDES, JOBS, VOCAB, VOCABULARY, guided_engine, shared_compiler
from tests.engine.workloads import Job, answers, assert_nothing_left, run_jobs, watch_preemptions
from tests.tiny import ScriptedDrafter, TinySettings, TokenChooser, finish_all

IDS = {text: token_id for token_id, text in reversed(list(enumerate(VOCABULARY)))}
PLAIN = TinySettings(num_blocks=400)


def matcher_of(guided: GuidedParams) -> Matcher:
    return shared_compiler().compile(guided).matcher()


def plain_ids(job: Job) -> tuple[int, ...]:
    return run_jobs(guided_engine(PLAIN), [job])["0"].outputs[0].token_ids


def scripted(mode: str, choose: TokenChooser) -> Engine:
    """An engine that drafts by script; nothing else adds to its trees."""
    engine = guided_engine(TinySettings(mode, num_blocks=400, check_consistency=True))
    engine.scheduler._lookup._grammars = None
    ScriptedDrafter.replace_in(engine, choose)
    return engine


@pytest.mark.parametrize("mode", ["chain:6", "tree:3x2x1x1"])
@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job.params.guided.kind}-{job.params.temperature:g}")
def test_a_grammar_that_completes_inside_a_run_ends_the_output_there(mode: str, job: Job) -> None:
    """Drafts are right up to the end, and go on behind it."""
    history = [*job.prompt, *plain_ids(job)]

    def choose(request: Request, position: int, rank: int, own: int) -> int:
        return history[position] if rank == 0 and position < len(history) else own

    engine = scripted(mode, choose)
    outputs = run_jobs(engine, [job])
    assert outputs["0"].outputs[0].token_ids == tuple(history[len(job.prompt) :])
    assert outputs["0"].outputs[0].speculation.acceptance_length >= 2
    assert_nothing_left(engine)


@pytest.mark.parametrize("mode", ["chain:4", "tree:2x2x1"])
def test_an_illegal_draft_token_at_any_position_changes_nothing(mode: str) -> None:
    job = Job((5, 9), SamplingParams(temperature=0, max_tokens=40, guided=GUIDES[1]))
    history = [*job.prompt, *plain_ids(job)]
    for wrong in range(len(job.prompt), len(history)):

        def choose(request: Request, position: int, rank: int, own: int, wrong: int = wrong) -> int:
            right = history[position] if position < len(history) else own
            return IDS[b"Z"] if position == wrong else right

        outputs = run_jobs(scripted(mode, choose), [job])
        assert outputs["0"].outputs[0].token_ids == tuple(history[len(job.prompt) :])


def test_a_grammar_of_one_letter_ends_whatever_is_drafted() -> None:
    job = Job((1,), SamplingParams(temperature=0, guided=GuidedParams(regex="a")))
    outputs = run_jobs(scripted("chain:4", lambda request, position, rank, own: IDS[b"a"]), [job])
    sample = outputs["0"].outputs[0]
    assert (sample.text, sample.token_ids, sample.finish_reason) == ("a", (IDS[b"a"], EOS), FinishReason.STOP)


@pytest.mark.parametrize("seed", range(6))
def test_random_grammars_and_random_drafts_end_within_a_step_per_token(seed: int) -> None:
    choose_from = random.Random(seed)
    parts = ["[ab]", "(a|b){1,3}", "x?", "(ab)*c", "[0-9]{2}", "é", "(true|false)", "a+"]
    guided = GuidedParams(regex="".join(choose_from.choice(parts) for _ in range(4)))
    job = Job((seed,), SamplingParams(seed=seed, max_tokens=30, guided=guided))
    expected = plain_ids(job)
    history = [*job.prompt, *expected]

    def choose(request: Request, position: int, rank: int, own: int) -> int:
        if choose_from.random() < 0.5 and position < len(history):
            return history[position]
        return choose_from.randrange(VOCAB)

    engine = scripted("tree:3x2x1", choose)
    engine.add_request("0", job.prompt, job.params)
    steps = 0
    while engine.has_unfinished:
        outputs = engine.step()
        steps += 1
        assert steps <= len(expected) + 1
    assert outputs[0].outputs[0].token_ids == expected


def test_every_node_has_the_mask_of_its_own_path() -> None:
    """Siblings `{"` and `[` go on in different ways; below an illegal token and behind the end there is no mask."""
    guided = GuidedParams(regex="a(b[0-4]|c[5-9]|)")
    texts = [b"x", b"a", b"b", b"c", b"4", b"5", b"Z", b"4", b"a"]
    parents = [-1, 0, 1, 1, 2, 3, 1, 6, 4]
    tokens = [IDS[text] for text in texts]
    tokens[8] = EOS
    table = MaskTable(VOCAB)
    matcher = matcher_of(guided)
    rows = fill_tree(matcher, TreeNodes(tokens, parents), table, table.add(matcher))
    for node, row in enumerate(rows):
        path = []
        at = node
        while at > 0:
            path.append(tokens[at])
            at = parents[at]
        fresh = matcher_of(guided)
        is_legal = all(fresh.accept(token_id) for token_id in reversed(path))
        own = MaskTable(VOCAB)
        if not is_legal or own.add(fresh) < 0:
            assert row == -1
        else:
            assert numpy.array_equal(table._bits[row], own._bits[0])
    assert rows.count(-1) == 3
    before, after = MaskTable(VOCAB), MaskTable(VOCAB)
    before.add(matcher_of(guided))
    after.add(matcher)
    assert numpy.array_equal(before._bits, after._bits)


def test_going_on_and_taking_back_leaves_no_trace() -> None:
    matcher, untouched = matcher_of(GUIDES[0]), matcher_of(GUIDES[0])
    choose = random.Random(0)
    for _ in range(40):
        num_down = 0
        for _ in range(choose.randrange(6)):
            num_down += matcher.accept(choose.randrange(VOCAB))
        matcher.rollback(num_down)
        tables = MaskTable(VOCAB), MaskTable(VOCAB)
        tables[0].add(matcher)
        tables[1].add(untouched)
        assert numpy.array_equal(tables[0]._bits, tables[1]._bits)
        legal = [token_id for token_id in range(VOCAB) if untouched.allows(token_id)]
        step = choose.choice(legal)
        assert matcher.accept(step) and untouched.accept(step)
        if matcher.is_terminated:
            break


def test_any_token_may_be_offered_anywhere_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """Among them special tokens, ends where none may be, and tokens behind the end."""
    for guided in GUIDES:
        matcher, choose = matcher_of(guided), random.Random(1)
        for _ in range(40):
            legal = [token_id for token_id in range(VOCAB) if matcher.allows(token_id)]
            assert EOS - 1 not in legal
            if not legal:
                break
            matcher.accept(choose.choice(legal))
        assert matcher.is_terminated == (not legal)
    assert capfd.readouterr() == ("", "")


def test_tokens_looked_up_wrongly_cut_nothing() -> None:
    """The prompt goes on in another way wherever the answer comes by: what it foretells is legal and not drawn."""
    text = [VOCABULARY.index(piece) for piece in (b"a", b"b", b"a", b"a", b"b", b"b") * 6]
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=80, guided=GuidedParams(regex="[ab]{60}"))
    job = Job(tuple(text), params)
    plain = answers(run_jobs(guided_engine(TinySettings(num_blocks=400)), [job])["0"])
    engine = guided_engine(TinySettings("chain:4", lookup="on", num_blocks=400, check_consistency=True))
    output = run_jobs(engine, [job])["0"]
    figures = output.outputs[0].speculation
    assert answers(output) == plain and len(output.outputs[0].text) == 60
    assert 0 < figures.num_accepted_lookup_tokens < figures.num_lookup_tokens
    assert_nothing_left(engine)


@pytest.mark.parametrize("depth", range(1, 9))
def test_forty_guided_requests_run_together(depth: int) -> None:
    jobs = [
        Job(
            (seed, 7), SamplingParams(temperature=seed % 2, seed=seed, max_tokens=12, guided=GUIDES[seed % len(GUIDES)])
        )
        for seed in range(40)
    ]
    settings = TinySettings(f"chain:{depth}", max_num_seqs=40, num_blocks=900, max_num_batched_tokens=512)
    engine = guided_engine(settings)
    outputs = run_jobs(engine, jobs)
    together = guided_engine(replace(settings, speculate="off"))
    expected = run_jobs(together, jobs)
    assert all(answers(outputs[name]) == answers(expected[name]) for name in expected)
    assert_nothing_left(engine)


@pytest.mark.parametrize("mode", ["off", "chain:3", "tree:3x2x1"])
def test_preempted_guided_requests_find_their_place_again(mode: str) -> None:
    jobs = [replace(JOBS[0], prompt=(seed, 2, 3), params=replace(JOBS[0].params, max_tokens=30)) for seed in range(4)]
    jobs += [Job((9, 9), SamplingParams(seed=1, max_tokens=12, ignore_eos=True))]
    engine = guided_engine(TinySettings(mode, block_size=2, num_blocks=34, max_num_seqs=5, check_consistency=True))
    preempted = watch_preemptions(engine)
    outputs = run_jobs(engine, jobs)
    assert preempted
    for index, job in enumerate(jobs):
        assert answers(outputs[str(index)]) == answers(run_jobs(guided_engine(PLAIN), [job])["0"])
    assert_nothing_left(engine)


@pytest.mark.parametrize("mode", ["off", "chain:4"])
def test_how_limits_and_stops_end_a_guided_output(mode: str) -> None:
    guided = GuidedParams(regex="a{6,9}")
    cases = {
        "max_tokens": SamplingParams(temperature=0, max_tokens=4, guided=guided),
        "stop": SamplingParams(temperature=0, stop="aaa", guided=guided),
        "stop id": SamplingParams(temperature=0, stop_token_ids=[IDS[b"a"]], min_tokens=3, guided=guided),
        "min_tokens": SamplingParams(temperature=0, min_tokens=8, guided=guided),
        "too many min_tokens": SamplingParams(temperature=0, min_tokens=50, max_tokens=60, guided=guided),
        "banned": SamplingParams(temperature=0, banned_token_ids=[IDS[b"a"]], guided=guided),
    }
    outputs = run_jobs(guided_engine(TinySettings(mode)), [Job((1,), params) for params in cases.values()])
    found = {name: outputs[str(index)].outputs[0] for index, name in enumerate(cases)}
    assert (found["max_tokens"].text, found["max_tokens"].finish_reason) == ("aaaa", FinishReason.LENGTH)
    assert (found["stop"].text, found["stop"].stop_reason) == ("", "aaa")
    assert len(found["stop id"].token_ids) == 3
    assert 8 <= len(found["min_tokens"].text) <= 9
    assert (found["too many min_tokens"].text, found["too many min_tokens"].finish_reason) == (
        "a" * 9,
        FinishReason.STOP,
    )
    assert found["banned"].text.startswith("aaaaaa")


def test_a_guide_that_cannot_be_followed_is_refused_and_leaves_nothing() -> None:
    engine = guided_engine(PLAIN)
    for guided, reason in (
        (GuidedParams(grammar='x ::= "a"'), "not understood"),
        (GuidedParams(regex="(a"), "not closed"),
        (GuidedParams(json_schema={"not": {}}), "#/not"),
    ):
        with pytest.raises(InvalidParameterError, match=reason):
            engine.add_request("0", [1], SamplingParams(guided=guided))
    engine.add_request("0", [1], SamplingParams(temperature=0, guided=GuidedParams(regex="a")))
    assert finish_all(engine)["0"].outputs[0].text == "a"
    assert_nothing_left(engine)


def test_several_samples_of_a_guided_prompt_are_guided_alike() -> None:
    job = Job((4,), SamplingParams(seed=3, n=4, max_tokens=60, guided=GUIDES[1]))
    outputs = run_jobs(guided_engine(TinySettings("chain:3")), [job])["0"]
    assert answers(outputs) == answers(run_jobs(guided_engine(PLAIN), [job])["0"])
    assert len({sample.text for sample in outputs.outputs}) > 1
