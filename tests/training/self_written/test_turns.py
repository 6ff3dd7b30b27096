"""User turns from templates: every slot is filled, every category is itself, and the same seed says the same."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aquiline.tokenizer import Tokenizer
from aquiline.training.self_written import phrase_book as books
from aquiline.training.self_written.filling import excerpt, fill
from aquiline.training.self_written.phrase_book import phrase_book
from aquiline.training.self_written.rounds import plan_counts
from aquiline.training.self_written.settings import SHARES, SelfWrittenSettings
from aquiline.training.self_written.turns import TURN_MAKERS, Material, follow_up
from aquiline.training.self_written.user_turns import user_turn_prompt
from tests.tiny_tokenizers import train_byte_level, write_hf_folder

DOCUMENT = "An owl sat on the mast. It was {night}! Nobody saw it. So it slept."
MATERIAL = Material([DOCUMENT], ["```\nprint({1: 2})\n```"], {"French": ["Bonjour. Il pleut."]})
BOOKS = sorted(path.stem for path in Path(str(resources.files(books.__package__) / "phrases")).glob("*.toml"))


@pytest.mark.parametrize("name", BOOKS)
def test_every_phrase_can_be_filled(name: str) -> None:
    for phrases in phrase_book(name).values():
        assert len(phrases) == len(set(phrases)) or name in ("code", "maths", "chat"), "a phrase stands there twice"
        for phrase in phrases:
            given = {slot: slot for slot in ("document", "excerpt", "source", "concept", "concept2", "topic")}
            filled = fill(phrase, random.Random(0), **given)
            assert not re.search(r"\{\w+\}", filled)


@pytest.mark.parametrize("category", list(SHARES))
def test_turns_are_made_by_category(category: str) -> None:
    turns = [TURN_MAKERS[category](random.Random(seed), MATERIAL) for seed in range(200)]
    assert turns == [TURN_MAKERS[category](random.Random(seed), MATERIAL) for seed in range(200)]
    assert {turn.category for turn in turns} == {category}
    assert all(turn.text for turn in turns if turn.is_complete)
    assert len({turn.text for turn in turns}) > 10


@pytest.mark.parametrize("category", list(SHARES))
def test_turns_can_do_without_material(category: str) -> None:
    for seed in range(50):
        turn = TURN_MAKERS[category](random.Random(seed), Material())
        assert turn.text or not turn.is_complete


def test_follow_ups_keep_the_category() -> None:
    turns = [follow_up(random.Random(seed), "maths") for seed in range(50)]
    assert {turn.category for turn in turns} == {"maths"} and {turn.is_complete for turn in turns} == {True, False}


def test_an_excerpt_is_sentences_in_a_row() -> None:
    for seed in range(50):
        part = excerpt(DOCUMENT, random.Random(seed))
        assert part and part in DOCUMENT and part[-1] in ".!"


def test_counts_make_up_for_short_answers() -> None:
    lengths: Mapping[str, float] = {name: 10.0 + 10.0 * index for index, name in enumerate(SHARES)}
    counts = plan_counts(SelfWrittenSettings(num_turns_per_round=20_000), lengths)
    tokens = {name: counts[name] * lengths[name] for name in SHARES}
    for name, share in SHARES.items():
        assert tokens[name] / sum(tokens.values()) == pytest.approx(share, rel=0.05)


@given(num_turns=st.integers(1, 200), lengths=st.lists(st.floats(1, 500), min_size=len(SHARES), max_size=len(SHARES)))
def test_a_round_has_as_many_turns_as_asked_for(num_turns: int, lengths: list[float]) -> None:
    counts = plan_counts(SelfWrittenSettings(num_turns_per_round=num_turns), dict(zip(SHARES, lengths, strict=True)))
    assert sum(counts.values()) == num_turns and min(counts.values()) >= 0


@pytest.mark.parametrize(
    ("template", "stop", "has_token"),
    [
        (None, None, True),
        ("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:", "assistant:", False),
        ("{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}", "\n\n", False),
    ],
    ids=["special token", "text", "nothing"],
)
def test_the_model_speaks_where_the_user_would(
    tmp_path: Path, template: str | None, stop: str | None, has_token: bool
) -> None:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": template}
    folder = write_hf_folder(tmp_path, train_byte_level(), None if template is None else config)
    tokenizer = Tokenizer.from_path(folder)
    earlier = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    prompt = user_turn_prompt(tokenizer, "What is", earlier)
    served = tokenizer.render_chat([*earlier, {"role": "user", "content": "What is"}])
    shown = tokenizer.decode(prompt.token_ids, skip_special_tokens=False)
    assert served.startswith(shown) and shown.endswith("What is")
    assert prompt.stop == stop and (prompt.stop_token_id is not None) == has_token
