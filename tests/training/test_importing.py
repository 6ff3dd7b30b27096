"""From files to a folder of training data: what is skipped and why, nothing twice, the same after a kill."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from aquiline.errors import TrainingDataError
from aquiline.tokenizer import Tokenizer
from aquiline.training import importing
from aquiline.training.combining import asked_text, combine
from aquiline.training.dataset import DatasetFolder
from aquiline.training.examples import ExampleStore
from aquiline.training.exclusion import ExcludedPrompts
from aquiline.training.importing import ConversationImporter, ImportReport, ImportSettings, files_fingerprint
from tests.tiny_tokenizers import train_byte_level, write_hf_folder

NOTHING = ExcludedPrompts()
SETTINGS = ImportSettings(max_length=200, held_out_share=0.3, skips_bad_lines=True)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_path(write_hf_folder(tmp_path_factory.mktemp("tokenizer"), train_byte_level()))


@pytest.fixture
def small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "LINES_PER_ROUND", 4)


def said(question: str, answer: str) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
        "category": "chat",
    }


def many(num_lines: int) -> list[dict[str, Any]]:
    rng = random.Random(0)
    return [said(f"How high does eagle {number} fly?", f"{rng.randint(1, 900)} m") for number in range(num_lines)]


def write_lines(path: Path, lines: Sequence[dict[str, Any] | str]) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def run(
    tokenizer: Tokenizer,
    path: Path,
    folder: Path,
    settings: ImportSettings = SETTINGS,
    excluded: ExcludedPrompts = NOTHING,
    on_progress: Callable[[ImportReport], None] = lambda report: None,
) -> ImportReport:
    importer = ConversationImporter(tokenizer, tokenizer.eos_token_ids, settings, excluded)
    return importer.run([path], DatasetFolder(folder, {"files": files_fingerprint([path])}), on_progress)


def killing_at(num_lines: int) -> Callable[[ImportReport], None]:
    """Interrupts a run once it has read so many lines."""

    def kill(report: ImportReport) -> None:
        if report.num_read >= num_lines:
            raise KeyboardInterrupt

    return kill


def all_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_reason_to_skip_is_counted_and_its_first_line_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "data.jsonl",
        [
            said("Who sings?", "The lark."),
            "{",
            {"messages": [{"role": "user", "content": "Nobody answers."}]},
            said("Who SINGS ...", "the lark"),
            said("Tell me all.", "word " * 300),
            said("What is it that is measured here?", "Speed."),
            {"messages": [{"role": "assistant", "content": "I speak first."}]},
            {"prompt": "Nobody answers this either."},
            said("Who flies?", "The owl."),
        ],
    )
    excluded = ExcludedPrompts(["what is it that is measured"])
    report = run(tokenizer, path, tmp_path / "data", excluded=excluded)
    assert report.num_read == 9 and report.num_stored == 2
    assert report.num_skipped == {
        "bad line": 1,
        "no assistant turn": 2,
        "duplicate": 1,
        "too long": 1,
        "excluded": 1,
        "not usable": 1,
    }
    named = {reason: place.split(" line ")[1].split(":")[0] for reason, place in report.first_skipped.items()}
    assert named == {
        "bad line": "2",
        "no assistant turn": "3",
        "duplicate": "4",
        "too long": "5",
        "excluded": "6",
        "not usable": "7",
    }
    examples = [*ExampleStore(tmp_path / "data"), *ExampleStore(tmp_path / "data" / "evaluation")]
    answers = sorted(tokenizer.decode(example.answers[0]) for example in examples)
    assert answers == ["The lark.", "The owl."] and {example.category for example in examples} == {"chat"}
    assert report.num_answer_tokens == sum(example.num_answer_tokens for example in examples)


def test_the_longest_that_is_allowed_is_taken(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "data.jsonl", [said("Who sings?", "The lark.")])
    run(tokenizer, path, tmp_path / "data", ImportSettings(99, held_out_share=0))
    length = len(ExampleStore(tmp_path / "data")[0].token_ids)
    run(tokenizer, path, tmp_path / "fits", ImportSettings(length, held_out_share=0))
    with pytest.raises(TrainingDataError, match=rf"line 1: it has {length} tokens, and {length - 1} are allowed"):
        run(tokenizer, path, tmp_path / "too_long", ImportSettings(length - 1, held_out_share=0))


def test_a_bad_line_is_an_error_unless_it_may_be_skipped(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "data.jsonl", [said("a", "b"), "{"])
    with pytest.raises(TrainingDataError, match=r"data\.jsonl line 2: it is not JSON.*--skip-bad-lines"):
        run(tokenizer, path, tmp_path / "data", ImportSettings(200))


def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    tokenizer: Tokenizer, tmp_path: Path, small_rounds: None
) -> None:
    lines = many(30)
    path = write_lines(tmp_path / "data.jsonl", [*lines[:20], *lines[3:8], *lines[20:]])
    whole = run(tokenizer, path, tmp_path / "whole")
    assert whole.num_skipped == {"duplicate": 5} and whole.num_stored == 30

    for num_lines in (4, 12, 16):
        with pytest.raises(KeyboardInterrupt):
            run(tokenizer, path, tmp_path / "killed", on_progress=killing_at(num_lines))
    again = run(tokenizer, path, tmp_path / "killed")
    assert again == whole and all_bytes(tmp_path / "killed") == all_bytes(tmp_path / "whole")
    stores = [ExampleStore(tmp_path / "whole"), ExampleStore(tmp_path / "whole" / "evaluation")]
    assert sum(map(len, stores)) == 30 and all(len(store) > 3 for store in stores)


def test_a_question_is_put_aside_with_all_its_answers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "data.jsonl", [said(f"Which bird is number {n % 10}?", f"Bird {n}.") for n in range(40)]
    )
    run(tokenizer, path, tmp_path / "data")
    asked = [
        {asked_text(tokenizer, example) for example in ExampleStore(tmp_path / "data" / part)}
        for part in ("train", "evaluation")
    ]
    assert asked[0] and asked[1] and not asked[0] & asked[1]


def test_other_files_do_not_mix(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run(tokenizer, write_lines(tmp_path / "one.jsonl", many(2)), tmp_path / "data")
    with pytest.raises(TrainingDataError, match="written with files"):
        run(tokenizer, write_lines(tmp_path / "two.jsonl", many(3)), tmp_path / "data")


@pytest.mark.parametrize(
    "first", ["{", {"messages": [{"role": "user", "content": "How high?"}]}], ids=["broken", "unanswered"]
)
def test_a_refused_file_may_be_mended(tokenizer: Tokenizer, first: dict[str, Any] | str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "data.jsonl", [first])
    with pytest.raises(TrainingDataError, match="line 1"):
        run(tokenizer, path, tmp_path / "data")
    report = run(tokenizer, write_lines(path, many(5)), tmp_path / "data")
    assert report.num_stored == 5
    assert sum(len(ExampleStore(tmp_path / "data" / part)) for part in ("train", "evaluation")) == 5


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingDataError, match="cannot be used"):
        DatasetFolder(tmp_path / "file", {})


def test_a_missing_shard_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "one.jsonl", many(2))
    run(tokenizer, path, tmp_path / "data")
    (tmp_path / "data" / "evaluation" / "000000.safetensors").unlink()
    with pytest.raises(TrainingDataError, match=r"evaluation/000000\.safetensors is missing"):
        list(DatasetFolder(tmp_path / "data", {"files": files_fingerprint([path])}).read_round(0))


def test_folders_are_put_together_without_what_is_in_both(
    tokenizer: Tokenizer, tmp_path: Path, small_rounds: None
) -> None:
    lines = many(30)
    run(tokenizer, write_lines(tmp_path / "one.jsonl", lines[:20]), tmp_path / "one")
    run(tokenizer, write_lines(tmp_path / "two.jsonl", lines[10:]), tmp_path / "two")
    run(tokenizer, write_lines(tmp_path / "all.jsonl", lines), tmp_path / "all")
    folders = [tmp_path / "one", tmp_path / "two"]
    with pytest.raises(KeyboardInterrupt):
        combine(folders, DatasetFolder(tmp_path / "both", {}), tokenizer, NOTHING, killing_at(13))
    report = combine(folders, DatasetFolder(tmp_path / "both", {}), tokenizer, NOTHING, lambda report: None)
    assert report.num_stored == 30 and report.num_skipped == {"duplicate": 10}
    for part in ("train", "evaluation"):
        both, whole = ExampleStore(tmp_path / "both" / part), ExampleStore(tmp_path / "all" / part)
        assert sorted(example.token_ids for example in both) == sorted(example.token_ids for example in whole)
    excluded = ExcludedPrompts(["How high does eagle 7 fly?"])
    report = combine(folders, DatasetFolder(tmp_path / "less", {}), tokenizer, excluded, lambda report: None)
    assert report.num_stored == 29 and report.num_skipped["excluded"] == 1


def test_folders_without_data_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match="holds no training data"):
        combine([tmp_path], DatasetFolder(tmp_path / "out", {}), tokenizer, NOTHING, lambda report: None)
    empty = DatasetFolder(tmp_path / "empty", {})
    empty.write_round([])
    with pytest.raises(TrainingDataError, match="none of 0 examples"):
        combine([empty.folder], DatasetFolder(tmp_path / "out", {}), tokenizer, NOTHING, lambda report: None)
