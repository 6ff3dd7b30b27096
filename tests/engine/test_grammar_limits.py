"""Guides that would take too long or too much are refused or ended, and delay nobody."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from aquiline.config import GrammarConfig
from aquiline.engine.engine import Engine, EngineModels
from aquiline.engine.grammar import MAX_KEPT, CompiledGrammar, GrammarCompiler, MaskArray, Matcher
from aquiline.engine.grammar_time import OVERDUE, GrammarTime, GrammarVerdict
from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams
from aquiline.request import FinishReason, SamplingParams
from tests.engine.guided_work import (
    EOS,
    VOCAB,
    VOCABULARY,
    guided_draft,
    guided_engine,
    guided_target,
    new_decoder,
)
from tests.engine.workloads import Job, answers, assert_nothing_left, run_jobs
from tests.tiny import TinySettings, finish_all

# Every text has more ways to be read than the one before it.
AMBIGUOUS = 'root ::= s s s s "b"\ns ::= "" | "a" s | s "a"'


def compiler(**limits: float) -> GrammarCompiler:
    return GrammarCompiler(lambda: VOCABULARY, VOCAB, frozenset((EOS,)), GrammarConfig(**limits))  # type: ignore[arg-type]


def test_a_grammar_that_cannot_be_served_is_refused() -> None:
    own = compiler(max_mask_ms=0.0001)
    for grammar, reason in (
        ('root ::= "a" b', "not understood.*b"),
        ("鷹" * 60, "not understood"),
        (AMBIGUOUS, "what may come next"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "not understood|ends the compiler"),
    ):
        with pytest.raises(InvalidParameterError, match=reason):
            own.compile(GuidedParams(grammar=grammar))


@pytest.mark.parametrize("limits", [{"max_mask_ms": 1e-6}, {"max_mask_mean_ms": 1e-6}])
def test_a_request_whose_masks_take_too_long_ends_and_its_neighbours_go_on(limits: dict[str, float]) -> None:
    models = EngineModels(guided_target(), guided_draft(60), new_decoder, frozenset((EOS,)), lambda: VOCABULARY)
    settings = TinySettings("chain:2", num_blocks=200).engine_config()
    engine = Engine(models, settings)
    neighbour = Job((3, 4), SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    slow = Job((5,), SamplingParams(temperature=0, max_tokens=80, guided=GuidedParams(grammar=AMBIGUOUS)))
    engine.guidance._time = GrammarTime(GrammarConfig(**limits))  # type: ignore[arg-type]
    outputs = run_jobs(engine, [slow, neighbour])
    ended = outputs["0"].outputs[0]
    assert (ended.finish_reason, ended.stop_reason) == (FinishReason.ABORT, OVERDUE)
    assert answers(outputs["1"]) == answers(run_jobs(guided_engine(TinySettings()), [neighbour])["0"])
    assert_nothing_left(engine)


def test_what_a_grammar_takes_beyond_its_share_adds_up_over_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of 20 ms, and 2 s that may be beyond: sixteen steps of 140 ms are taken, the next is too much."""
    names = map(str, count())
    clock = [0.0]
    monkeypatch.setattr("aquiline.engine.grammar_time.time.thread_time", lambda: clock[0])
    grammars = [compiler().compile(GuidedParams(choice=[text])) for text in ("a", "b")]
    own = GrammarTime(GrammarConfig())

    def step(grammar: CompiledGrammar, taken_ms: float) -> bool:
        name = next(names)
        for _ in range(2):
            with own.taking(name):
                clock[0] += taken_ms / 2000
        return own.judge(name, grammar) is GrammarVerdict.OVERDUE

    assert not any(step(grammars[0], 20) for _ in range(1000))
    assert not any(step(grammars[0], 140) for _ in range(16))
    assert step(grammars[0], 140) and step(grammars[0], 30)
    assert not any(step(grammars[1], 140) for _ in range(16))
    assert not any(step(grammars[0], 0) for _ in range(100))
    assert not step(grammars[0], 140)
    assert step(grammars[1], 251)


def test_drafts_stop_before_anything_ends_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of 20 ms: what drafts take beyond is no reason to end, and made up for it is forgotten."""
    clock = [0.0]
    monkeypatch.setattr("aquiline.engine.grammar_time.time.thread_time", lambda: clock[0])
    grammar = compiler().compile(GuidedParams(choice=["a"]))
    own = GrammarTime(GrammarConfig())

    def step(plain_ms: float, draft_ms: float) -> GrammarVerdict:
        for taken_ms, is_for_drafts in ((plain_ms, False), (draft_ms, True)):
            with own.taking("a", is_for_drafts):
                clock[0] += taken_ms / 1000
        return own.judge("a", grammar)

    assert {step(10, 130) for _ in range(16)} == {GrammarVerdict.FINE}
    assert {step(10, 130) for _ in range(50)} == {GrammarVerdict.WITHOUT_DRAFTS}
    assert {step(10, 0) for _ in range(199)} == {GrammarVerdict.WITHOUT_DRAFTS}
    assert {step(10, 0) for _ in range(20)} == {GrammarVerdict.FINE}
    assert step(10, 251) is GrammarVerdict.WITHOUT_DRAFTS
    assert step(251, 0) is GrammarVerdict.OVERDUE


@pytest.mark.parametrize("mode", ["chain:4", "tree:2x2"])
def test_a_slow_grammar_costs_its_drafts_and_no_token(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every mask takes 10 ms: one a step is borne, and those of a tree are not for long."""
    clock = [0.0]
    monkeypatch.setattr("aquiline.engine.grammar_time.time.thread_time", lambda: clock[0])
    fill = Matcher.fill

    def slow_fill(self: Matcher, bits: MaskArray, row: int) -> None:
        clock[0] += 0.01
        fill(self, bits, row)

    params = SamplingParams(temperature=1, seed=3, max_tokens=200, guided=GuidedParams(regex="[ab]{150}"))
    plain = answers(run_jobs(guided_engine(TinySettings(num_blocks=200)), [Job((5,), params)])["0"])
    monkeypatch.setattr(Matcher, "fill", slow_fill)
    engine = guided_engine(TinySettings(mode, num_blocks=200))
    engine.guidance._time = GrammarTime(GrammarConfig(max_mask_mean_ms=12))
    num_drafted = []
    engine.add_request("a", (5,), params)
    while engine.has_unfinished:
        (output,) = engine.step()
        num_drafted.append(output.outputs[0].speculation.num_draft_tokens)
    assert answers(output) == plain
    assert 0 < num_drafted[10] < num_drafted[-1] == num_drafted[-40]
    assert_nothing_left(engine)


def test_a_request_that_ends_before_its_first_token_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = guided_engine(TinySettings(max_num_batched_tokens=4))
    engine.guidance._time = GrammarTime(GrammarConfig(max_mask_ms=1e-6))
    params = SamplingParams(max_tokens=8, guided=GuidedParams(choice=["a"]))
    output = run_jobs(engine, [Job(tuple(range(1, 12)), params)])["0"].outputs[0]
    assert (output.finish_reason, output.stop_reason, output.token_ids) == (FinishReason.ABORT, OVERDUE, ())
    assert_nothing_left(engine)


def test_a_step_that_takes_nothing_leaves_nothing_behind() -> None:
    own = GrammarTime(GrammarConfig())
    with own.taking("0"):
        pass
    own.forget("0")
    assert not own._whole._taken and not own._plain._taken


def test_many_ask_for_one_grammar_at_once_and_get_the_same() -> None:
    own = compiler()
    guided = GuidedParams(json_schema={"type": "integer"})
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: id(own.compile(guided)), range(32)))
    assert len(found) == 1


def test_grammars_that_nobody_holds_nor_asked_for_lately_are_forgotten() -> None:
    own = compiler()
    held = own.compile(GuidedParams(choice=["held"]))
    left = weakref.ref(own.compile(GuidedParams(choice=["left"])))
    for number in range(MAX_KEPT + 5):
        own.compile(GuidedParams(choice=[str(number)]))
    assert len(own._kept) <= MAX_KEPT + 1
    assert left() is None
    assert own.compile(GuidedParams(choice=["held"])) is held


def test_the_sources_of_kept_grammars_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aquiline.engine.grammar.MAX_KEPT_BYTES", 50_000)
    own = compiler()
    for number in range(30):
        own.compile(GuidedParams(json_schema={"const": number, "description": "x" * 7000}))
        assert len(own._kept) <= 8
    assert len(own._kept) > 2


def test_a_grammar_that_is_held_is_not_compiled_again_for_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = guided_engine(TinySettings())
    assert engine.grammars is not None
    params = SamplingParams(temperature=0, max_tokens=5, guided=GuidedParams(choice=["ab"]))
    held = engine.guidance.grammar_of(params)
    engine.grammars._kept.clear()
    monkeypatch.setattr(engine.grammars, "_compile", None)
    engine.add_request("0", [1], params)
    del held
    engine.grammars._kept.clear()
    engine.add_request("1", [1], params)
    assert {output.outputs[0].text for output in finish_all(engine).values()} == {"ab"}
    assert not engine.grammars._held


@pytest.mark.parametrize(
    "wrong",
    [{"max_compile_seconds": 0}, {"max_mask_ms": float("nan")}, {"max_compile_mb": 1}, {"max_mask_mean_ms": True}],
)
def test_limits_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidParameterError, match=next(iter(wrong))):
        GrammarConfig(**wrong)  # type: ignore[arg-type]
