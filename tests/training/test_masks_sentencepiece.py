"""Masks with SentencePiece, which spells a space before every text and behind every special token."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from aquiline.errors import TrainingDataError
from aquiline.tokenizer import Tokenizer
from aquiline.training.masks import encode_conversation, token_spans
from tests.tiny_tokenizers import (
    sentencepiece_metadata,
    train_byte_level,
    train_sentencepiece,
    write_gguf,
    write_hf_folder,
)

# As the chat models of the Llama 2 family have it: brackets around questions, an end token behind answers.
BRACKETS = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }} </s>{% endif %}{% endfor %}"
)
LINES = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@pytest.fixture(scope="module", params=[BRACKETS, LINES], ids=["brackets", "lines"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    metadata = sentencepiece_metadata(train_sentencepiece()) | {"chat_template": request.param}
    return Tokenizer.from_path(write_gguf(tmp_path_factory.mktemp("tokenizer") / "model.gguf", metadata))


def test_answers_and_their_ends_are_found_in_every_turn(tokenizer: Tokenizer) -> None:
    texts = ["Where is it?", "Over the sea.", "And now?", "Still there,  two  spaces.", "So?", "鷹 flies."]
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]
    example = encode_conversation(tokenizer, messages, tokenizer.eos_token_ids)
    answers = [tokenizer.decode(answer, skip_special_tokens=False).strip() for answer in example.answers]
    assert [answer.removesuffix("</s>").strip() for answer in answers] == texts[1::2]
    assert all(answer[-1] in tokenizer.eos_token_ids for answer in example.answers)
    for turn in (1, 3, 5):
        served = tokenizer.apply_chat_template(messages[:turn])
        alone = encode_conversation(tokenizer, messages[: turn + 1], tokenizer.eos_token_ids)
        assert list(alone.token_ids[: len(served)]) == served and alone.answers == example.answers[: turn // 2 + 1]


def test_spans_follow_each_other(tokenizer: Tokenizer) -> None:
    text = "The eagle</s>flies<s> over</s></s> 鷹!"
    spans = token_spans(tokenizer, text, tokenizer.encode(text, add_special_tokens=False))
    assert spans[0].start == 0 and spans[-1].end == len(text.encode())
    assert all(before.end == after.start for before, after in itertools.pairwise(spans))


@pytest.mark.parametrize(
    ("other", "message"), [("The eagl", "changes the text"), ("The eagle!", "drops the text from byte 9")]
)
def test_tokens_of_another_text_are_noticed(tmp_path: Path, other: str, message: str) -> None:
    tokenizer = Tokenizer.from_path(write_hf_folder(tmp_path, train_byte_level()))
    with pytest.raises(TrainingDataError, match=message):
        token_spans(tokenizer, other, tokenizer.encode("The eagle", add_special_tokens=False))
