"""A draft that foresees nothing is not served by accident."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from aquiline.cli import main
from aquiline.config import CacheConfig, DraftCheck, EngineConfig, SpeculativeConfig
from aquiline.engine.draft_check import LEAST_CHANCE, MAX_TOKENS, MIN_TOKENS, DraftFit, binomial_tail, check_fit
from aquiline.errors import DraftMismatchError, InvalidParameterError
from aquiline.llm import LLM
from aquiline.models.draft_probe import MARGIN, RowPairing, probe_draft, read_text
from aquiline.models.eagle import EagleModel
from aquiline.models.llama import LlamaModel
from aquiline.request import SamplingParams
from aquiline.speculation import SpeculationMode, parse_speculation
from tests.bigram_models import write_bigram_draft, write_bigram_target
from tests.models.table_models import continue_by_table, eagle1_copy, eagle3_copy, table_target
from tests.models.test_self_draft import random_prompt, with_kinds
from tests.tiny import tiny_draft, tiny_target

NUM_STEPS = 5


def table_pair(kind: str) -> tuple[LlamaModel, EagleModel]:
    target = table_target(for_eagle1=kind == "eagle1")
    return target, eagle1_copy(target) if kind == "eagle1" else eagle3_copy(target)


@with_kinds
def test_a_copy_of_the_target_foresees_everything(kind: str) -> None:
    target, draft = table_pair(kind)
    prompts = [random_prompt(9, seed=1), random_prompt(30, seed=2)]
    texts = [[*prompt, *continue_by_table(prompt, 25)] for prompt in prompts]
    readings = [read_text(target, text, len(text) - 25, torch.float32) for text in texts]
    hits = probe_draft(draft, readings, NUM_STEPS, torch.float32)
    # The last tokens judge the chains of those before.
    assert len(hits.ranks) == 2 * (25 - NUM_STEPS - MARGIN)
    assert hits.conditional_per_position() == (1.0,) * NUM_STEPS
    assert hits.agreement(1) == 1.0
    assert hits.chance() < 0.5


@with_kinds
def test_text_that_the_target_would_not_write_is_judged_by_its_own_expectation(kind: str) -> None:
    """Behind a token that the target did not expect no step would go on."""
    target, draft = table_pair(kind)
    text = random_prompt(40, seed=5)
    reading = read_text(target, text, 6, torch.float32)
    hits = probe_draft(draft, [reading], 3, torch.float32)
    assert hits.agreement(1) == 1.0
    expected = reading.expected_ids.tolist()
    for number, found in enumerate(hits.num_accepted.tolist()):
        place = number + 5
        agreed = itertools.takewhile(lambda step: text[place + step + 1] == expected[place + step], range(1, 3))  # noqa: B023
        assert found == 1 + len(list(agreed))


@with_kinds
def test_every_wrong_pairing_loses(kind: str) -> None:
    target, draft = table_pair(kind)
    prompt = random_prompt(23, seed=23)
    reading = read_text(target, [*prompt, *continue_by_table(prompt, 40)], 23, torch.float32)
    for pairing in (
        RowPairing(token=-1),
        RowPairing(token=-1, label=-1),
        RowPairing(token=1, label=1),
        RowPairing(label=1),
        RowPairing(label=-1),
        RowPairing(self_fed_position=1),
        RowPairing(self_fed_position=-1),
    ):
        hits = probe_draft(draft, [reading], 3, torch.float32, pairing)
        assert hits.num_accepted.double().mean() < 2.0


def test_the_tail_counts_every_outcome() -> None:
    chance, num_trials = 0.3, 6
    for least in range(num_trials + 2):
        outcomes = [hits for hits in itertools.product((0, 1), repeat=num_trials) if sum(hits) >= least]
        expected = sum(chance ** sum(hits) * (1 - chance) ** (num_trials - sum(hits)) for hits in outcomes)
        assert binomial_tail(least, num_trials, chance) == pytest.approx(expected)


@with_kinds
def test_a_copy_is_let_through_and_an_untrained_draft_is_not(kind: str) -> None:
    target, draft = table_pair(kind)
    text = random_prompt(100, seed=3)
    fit = check_fit(target, draft, text, torch.float32)
    assert fit is not None and not fit.is_at_chance
    # The table looks at three earlier tokens, which the first positions do not have.
    assert fit.num_positions - 2 <= fit.num_right and fit.num_positions == MAX_TOKENS - 2 - 2 * MARGIN
    random_target = tiny_target(aux_layer_ids=(0, 1, 3))
    fit = check_fit(random_target, tiny_draft(random_target), [id % 60 for id in range(64)], torch.float32)
    assert fit is not None and fit.is_at_chance


def test_knowing_common_tokens_is_no_skill() -> None:
    assert DraftFit(6, 58, LEAST_CHANCE).is_at_chance
    assert not DraftFit(7, 58, LEAST_CHANCE).is_at_chance
    assert DraftFit(10, 58, 0.2).is_at_chance


def test_a_text_too_short_to_tell_is_not_judged() -> None:
    target = tiny_target(aux_layer_ids=(0, 1, 3))
    assert check_fit(target, tiny_draft(target), [1] * (MIN_TOKENS - 1), torch.float32) is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bigrams")
    write_bigram_target(folder / "target")
    write_bigram_draft(folder / "right")
    write_bigram_draft(folder / "wrong", is_right=False)
    return folder


def open_llm(folder: Path, draft: str, action: DraftCheck, speculate: str = "chain:3") -> LLM:
    speculative = SpeculativeConfig(parse_speculation(speculate), draft_check=action)
    config = EngineConfig(dtype="float32", speculative=speculative, cache=CacheConfig(num_blocks=16))
    return LLM(str(folder / "target"), draft=str(folder / draft), config=config)


def answer(llm: LLM) -> Sequence[int]:
    return llm.generate("The eagle", SamplingParams(temperature=0.0, max_tokens=12))[0].outputs[0].token_ids


def test_a_wrong_draft_is_refused_unless_told_otherwise(folder: Path) -> None:
    assert SpeculativeConfig().draft_check == "refuse"
    right = open_llm(folder, "right", "refuse")
    with pytest.raises(DraftMismatchError, match=r"wrong guesses \d+ of 5\d tokens .* \(\d+ %\).*--draft-check off"):
        open_llm(folder, "wrong", "refuse")
    with pytest.warns(UserWarning, match="no better than chance .*it is hardly trained, not for this"):
        warned = open_llm(folder, "wrong", "warn")
    assert answer(right) == answer(warned) == answer(open_llm(folder, "wrong", "off"))
    assert answer(open_llm(folder, "wrong", "refuse", speculate="off")) == answer(right)


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="draft_check is 'maybe'; it must be off, warn or refuse"):
        SpeculativeConfig(SpeculationMode("auto"), draft_check="maybe")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("default:.*no better than chance")
def test_the_command_line_refuses_and_warns_on_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["generate", "--model", str(folder / "target"), "--draft", str(folder / "wrong"), "--dtype", "float32"]
    argv += ["--prompt", "The eagle", "--raw", "--max-tokens", "4", "--num-blocks", "16"]
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("aquiline: error: the draft ") and shown.err.count("\n") == 1 and not shown.out
    assert main([*argv, "--draft-check", "warn"]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("aquiline: warning: the draft ") and shown.err.count("\n") == 1 and shown.out
