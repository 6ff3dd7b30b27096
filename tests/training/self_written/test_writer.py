"""Writing conversations with a tiny model: whole rounds, the same after a kill, nothing twice, nothing excluded."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from aquiline.config import EngineConfig
from aquiline.errors import InvalidParameterError, TrainingDataError
from aquiline.llm import LLM
from aquiline.request import SamplingParams
from aquiline.training.examples import ExampleStore, shard_paths
from aquiline.training.exclusion import ExcludedPrompts
from aquiline.training.self_written.settings import SHARES, SelfWrittenSettings
from aquiline.training.self_written.turns import TURN_MAKERS, TurnMaker, UserTurn
from aquiline.training.self_written.writer import SelfWriter, WritingProgress
from tests.training.self_written.tiny_chat import open_chat_model, write_chat_model

SETTINGS = SelfWrittenSettings(
    seed=3, num_turns_per_round=20, max_answer_tokens=30, max_user_tokens=20, held_out_share=0.2, follow_up_share=0.5
)
NOTHING = ExcludedPrompts()
TARGET: dict[str, object] = {"target": "tiny"}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return open_chat_model(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def written(llm: LLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rounds."""
    folder = tmp_path_factory.mktemp("data")
    writer = SelfWriter(llm, folder, SETTINGS, NOTHING, TARGET)
    while len(shard_paths(folder / "train")) < 3:
        writer.write(writer.num_answer_tokens + 1)
    return folder


def all_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("killed_after", [1, 60, 400])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    llm: LLM, written: Path, tmp_path: Path, killed_after: int
) -> None:
    goal = ExampleStore(written / "train").num_answer_tokens + ExampleStore(written / "evaluation").num_answer_tokens
    num_calls = 0

    def kill(progress: WritingProgress) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls % killed_after == 0:
            raise KeyboardInterrupt

    for _ in range(1 if killed_after == 1 else 4):
        writer = SelfWriter(llm, tmp_path, SETTINGS, NOTHING, TARGET)
        try:
            writer.write(goal, kill)
        except KeyboardInterrupt:
            continue
    SelfWriter(llm, tmp_path, SETTINGS, NOTHING, TARGET).write(goal)
    assert all_bytes(tmp_path) == all_bytes(written)


def test_answers_are_what_the_target_writes_to_their_prompts(llm: LLM, written: Path) -> None:
    """The greedy ones, that is: half of all, less those that are alike."""
    examples = list(ExampleStore(written / "train"))
    prompts, params, answers = [], [], []
    for example in examples:
        assert example.category in SHARES
        answers.append(example.answers[-1])
        prompts.append(list(example.token_ids[: -len(answers[-1])]))
        params.append(SamplingParams(temperature=0.0, max_tokens=len(answers[-1])))
    outputs = llm.generate(prompts, params)
    num_equal = sum(output.outputs[0].token_ids == answer for output, answer in zip(outputs, answers, strict=True))
    assert len(examples) > 20 and len(examples) / 5 < num_equal < len(examples)


def test_nothing_is_asked_twice_and_some_go_on(written: Path) -> None:
    training, evaluation = ExampleStore(written / "train"), ExampleStore(written / "evaluation")
    for store in (training, evaluation):
        assert len(store.fingerprints) == len(store) > 0
    assert not training.fingerprints & evaluation.fingerprints
    num_answers = Counter(len(example.answers) for example in training)
    assert set(num_answers) == {1, 2}
    long_answers = [answer for store in (training, evaluation) for example in store for answer in example.answers[-1:]]
    long_answers = [answer for answer in long_answers if len(answer) >= 16]
    assert len(set(long_answers)) == len(long_answers)


def test_excluded_prompts_are_never_asked(llm: LLM, tmp_path: Path) -> None:
    excluded = ExcludedPrompts(["Write an encyclopedia entry", "Write a short history", "review of a book about"])
    settings = replace(SETTINGS, shares={"writing": 1.0})
    progress = SelfWriter(llm, tmp_path, settings, excluded, TARGET).write(1)
    assert progress.num_dropped["excluded questions"] > 0
    for name in ("train", "evaluation"):
        for example in ExampleStore(tmp_path / name):
            assert not excluded.overlap(llm.tokenizer.decode(example.token_ids))


def test_a_template_that_forgets_answers_keeps_first_turns(tmp_path: Path) -> None:
    forgetful = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
        "{% if m['role'] == 'assistant' and not loop.last %}...{% else %}{{ m['content'] }}{% endif %}<|im_end|>"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    folder = write_chat_model(tmp_path / "target")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": forgetful}))
    llm = LLM(str(folder), draft=None, config=EngineConfig(dtype="float32"))
    progress = SelfWriter(llm, tmp_path / "data", SETTINGS, NOTHING, TARGET).write(200)
    assert progress.num_dropped["earlier answers that cannot be found"] > 0
    assert {len(example.answers) for example in ExampleStore(tmp_path / "data")} == {1}


def test_a_target_that_says_nothing_new_is_not_asked_for_ever(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always = UserTurn("writing", "Tell me the one story that you know.", True)
    monkeypatch.setitem(cast("dict[str, TurnMaker]", TURN_MAKERS), "writing", lambda rng, material: always)
    settings = replace(SETTINGS, shares={"writing": 1.0}, num_turns_per_round=3, follow_up_share=0.0)
    with pytest.raises(TrainingDataError, match=r"no conversation \(.*3 duplicate questions were dropped"):
        SelfWriter(llm, tmp_path, settings, NOTHING, TARGET).write(10**6)
    assert len(shard_paths(tmp_path / "train")) == 1


def test_a_short_context_makes_no_difference_but_in_what_fits(tmp_path: Path) -> None:
    small = open_chat_model(tmp_path / "target", max_position=150)
    progress = SelfWriter(small, tmp_path / "data", SETTINGS, NOTHING, TARGET).write(200)
    assert progress.num_answer_tokens >= 200
    assert sum(count for reason, count in progress.num_dropped.items() if "too long" in reason) > 0
    assert max(ExampleStore(tmp_path / "data").lengths) <= 150


def test_enough_is_enough(llm: LLM, written: Path) -> None:
    before = all_bytes(written)
    progress = SelfWriter(llm, written, SETTINGS, NOTHING, TARGET).write(1)
    assert progress.num_new_tokens == 0 and all_bytes(written) == before


@pytest.mark.parametrize(
    ("settings", "excluded", "target", "message"),
    [
        (replace(SETTINGS, seed=4), NOTHING, TARGET, "seed 3, and now it is 4"),
        (SETTINGS, ExcludedPrompts(["a b c d"]), TARGET, "excluded ''"),
        (SETTINGS, NOTHING, {"target": "other"}, "target 'tiny', and now it is 'other'"),
    ],
    ids=["seed", "excluded", "target"],
)
def test_other_settings_do_not_mix(
    llm: LLM,
    written: Path,
    settings: SelfWrittenSettings,
    excluded: ExcludedPrompts,
    target: dict[str, object],
    message: str,
) -> None:
    with pytest.raises(TrainingDataError, match=message):
        SelfWriter(llm, written, settings, excluded, target)


def test_a_spoilt_note_of_the_settings_is_named(llm: LLM, tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(TrainingDataError, match=r"settings\.json cannot be read"):
        SelfWriter(llm, tmp_path, SETTINGS, NOTHING, TARGET)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": -1},
        {"max_answer_tokens": 0},
        {"user_temperature": 3.0},
        {"held_out_share": "0.1"},
        {"shares": {"x": 1.0}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_settings_outside_their_range_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidParameterError, match=next(iter(changes))):
        replace(SETTINGS, **changes)  # type: ignore[arg-type]
