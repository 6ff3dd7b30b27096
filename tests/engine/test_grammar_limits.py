"""Guides that would take too long or too much are refused or ended, and delay nobody."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from aquiline.config import GrammarConfig
from aquiline.engine.engine import Engine, EngineModels
from aquiline.engine.grammar import MAX_KEPT, CompiledGrammar, GrammarCompiler
from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams
from aquiline.request import FinishReason, SamplingParams
from tests.engine.guided_work import EOS, VOCAB, VOCABULARY, guided_draft, guided_engine, guided_target, new_decoder
from tests.engine.workloads import Job, answers, assert_nothing_left, run_jobs
from tests.tiny import TinySettings

# Every text has more ways to be read than the one before it.
AMBIGUOUS = 'root ::= s s s s "b"\ns ::= "" | "a" s | s "a"'


def compiler(**limits: float) -> GrammarCompiler:
    return GrammarCompiler(lambda: VOCABULARY, VOCAB, frozenset((EOS,)), GrammarConfig(**limits))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("grammar", "limits", "reason"),
    [
        ('root ::= "a" b', {}, "not understood.*b"),
        (AMBIGUOUS, {"max_mask_ms": 0.0001}, "what may come next"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, {}, "not understood|ends the compiler"),
    ],
)
def test_a_grammar_that_cannot_be_served_is_refused(grammar: str, limits: dict[str, float], reason: str) -> None:
    with pytest.raises(InvalidParameterError, match=reason):
        compiler(**limits).compile(GuidedParams(grammar=grammar))


def test_a_grammar_that_compiles_too_long_is_refused_in_time() -> None:
    alternatives = " | ".join(f'"{n:06d}" [a-z]{{1,60}} [^{chr(97 + n % 26)}]{{1,60}}' for n in range(30_000))
    started = time.perf_counter()
    with pytest.raises(InvalidParameterError, match="takes more than"):
        compiler(max_compile_seconds=0.2, max_compile_mb=2000).compile(GuidedParams(grammar=f"root ::= {alternatives}"))
    assert time.perf_counter() - started < 60


def test_a_choice_that_compiles_too_long_is_refused_and_a_kept_grammar_is_not_measured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [f"{number} " + "x" * 200 for number in range(4000)]
    with pytest.raises(InvalidParameterError, match="takes more than"):
        compiler(max_compile_seconds=0.2).compile(GuidedParams(choice=texts))
    keeper = compiler()
    kept = keeper.compile(GuidedParams(choice=["a"]))
    monkeypatch.delattr(CompiledGrammar, "num_bytes")
    assert keeper.compile(GuidedParams(choice=["a"])) is kept


def test_a_request_whose_masks_take_too_long_ends_and_its_neighbours_go_on() -> None:
    models = EngineModels(guided_target(), guided_draft(60), new_decoder, frozenset((EOS,)), lambda: VOCABULARY)
    settings = TinySettings("chain:2", num_blocks=200).engine_config()
    engine = Engine(models, settings)
    neighbour = Job((3, 4), SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    slow = Job((5,), SamplingParams(temperature=0, max_tokens=80, guided=GuidedParams(grammar=AMBIGUOUS)))
    engine.guidance._max_mask_seconds = 0.0
    outputs = run_jobs(engine, [slow, neighbour])
    assert outputs["0"].outputs[0].finish_reason is FinishReason.ABORT
    assert answers(outputs["1"]) == answers(run_jobs(guided_engine(TinySettings()), [neighbour])["0"])
    assert_nothing_left(engine)


def test_many_ask_for_one_grammar_at_once_and_get_the_same() -> None:
    own = compiler()
    guided = GuidedParams(json_schema={"type": "integer"})
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: id(own.compile(guided)), range(32)))
    assert len(found) == 1


def test_grammars_that_nobody_asked_for_lately_are_forgotten() -> None:
    own = compiler()
    first = own.compile(GuidedParams(choice=["first"]))
    for number in range(MAX_KEPT + 5):
        own.compile(GuidedParams(choice=[str(number)]))
    assert len(own._kept) <= MAX_KEPT + 1
    assert own.compile(GuidedParams(choice=["first"])) is not first


@pytest.mark.parametrize(
    "wrong", [{"max_compile_seconds": 0}, {"max_mask_ms": float("nan")}, {"max_compile_mb": 1}, {"max_mask_ms": True}]
)
def test_limits_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidParameterError, match=next(iter(wrong))):
        GrammarConfig(**wrong)  # type: ignore[arg-type]
