"""Tokenizers of GGUF files: the same ids as the tokenizer the file was made from."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from aquiline.errors import ModelFormatError, UnsupportedFeatureError
from aquiline.gguf_tokenizer import TokenType
from aquiline.model_store import resolve_model
from aquiline.tokenizer import Tokenizer
from tests.tiny_tokenizers import (
    TEXTS,
    byte_level_metadata,
    sentencepiece_metadata,
    train_byte_level,
    train_sentencepiece,
    write_gguf,
)

REAL_TEXTS = (
    *TEXTS,
    "SELECT * FROM t WHERE a >= 10 AND b != 'x''y'; -- 1,000,000 rows\n\n",
    "    if (x[i] == 0x1F) {\n        return &y->z;\n    }\n",
    "中文文本,日本語テキスト、한국어 텍스트 и русский текст и числа 2024",
    "\u00a0non-breaking\u2003em space\u3000ideographic\u2028line",
    "a" * 300 + " " * 50 + "\n" * 20 + "!?" * 20,
    "\U0001d518\U0001d52b\U0001d526 ﷽ ½⅓ ①② 𒀀",
    "http://example.org/?q=a+b&c=%20#frag user@example.org",
)


@pytest.fixture(scope="module")
def trained() -> sentencepiece.SentencePieceProcessor:
    return train_sentencepiece()


@pytest.fixture(scope="module")
def sentencepiece_tokenizer(
    trained: sentencepiece.SentencePieceProcessor, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    path = tmp_path_factory.mktemp("gguf") / "sentencepiece.gguf"
    return Tokenizer.from_path(write_gguf(path, sentencepiece_metadata(trained)))


@pytest.fixture(scope="module")
def byte_level() -> tokenizers.Tokenizer:
    return train_byte_level()


@pytest.fixture(scope="module")
def byte_level_tokenizer(byte_level: tokenizers.Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("gguf") / "byte-level.gguf"
    return Tokenizer.from_path(write_gguf(path, byte_level_metadata(byte_level)))


@settings(deadline=None)
@given(st.text(max_size=30) | st.text(" 1a\n'sE½<|>", max_size=30) | st.sampled_from(TEXTS))
def test_byte_level_ids_equal_the_original(
    byte_level: tokenizers.Tokenizer, byte_level_tokenizer: Tokenizer, text: str
) -> None:
    assert byte_level_tokenizer.encode(text) == byte_level.encode(text).ids


@settings(deadline=None)
@given(st.text(max_size=30) | st.text(" eaglthr\n1🦅", max_size=30) | st.sampled_from(TEXTS[:10]))
def test_sentencepiece_ids_and_text_equal_sentencepiece(
    trained: sentencepiece.SentencePieceProcessor, sentencepiece_tokenizer: Tokenizer, text: str
) -> None:
    # SentencePiece ends a text at its first NUL, and neither side finds special tokens in these texts.
    text = text.replace("\x00", "").replace("▁", "")
    token_ids = sentencepiece_tokenizer.encode(text)
    assert token_ids == [1, *trained.encode(text)]
    assert sentencepiece_tokenizer.decode(token_ids) == text


def test_special_tokens_of_sentencepiece(sentencepiece_tokenizer: Tokenizer) -> None:
    assert sentencepiece_tokenizer.special_token_ids == {0, 1, 2}
    assert sentencepiece_tokenizer.eos_token_ids == {2}
    assert sentencepiece_tokenizer.encode("</s>", add_special_tokens=False) == [2]


# Four digits, `'ll` and `!!` become one token where the pre-tokenizer leaves them together.
MERGES = ["1 2", "12 3", "123 4", "' l", "'l l", "' L", "'L L", "! !", "Ġ 1", "a !", "Ċ Ċ", "Ġ Ġ"]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        pytest.param("gpt-2", "1234", ["1234"], id="gpt-2-digits"),
        pytest.param("gpt-2", " 1", ["Ġ1"], id="gpt-2-space-and-digit"),
        pytest.param("gpt-2", "'LL", ["'", "L", "L"], id="gpt-2-contractions-lower-case"),
        pytest.param("smollm", "1234", ["1", "2", "3", "4"], id="smollm-digits"),
        pytest.param("smollm", " 1", ["Ġ", "1"], id="smollm-space-and-digit"),
        pytest.param("smollm", "  1", ["ĠĠ", "1"], id="smollm-spaces-and-digit"),
        pytest.param("llama-bpe", "1234", ["123", "4"], id="llama-digits"),
        pytest.param("llama-bpe", "'LL", ["'LL"], id="llama-contractions-any-case"),
        pytest.param("llama-bpe", "!!\n\n", ["!!", "ĊĊ"], id="llama-newlines"),
        pytest.param("llama3", "1234", ["123", "4"], id="llama3-is-llama-bpe"),
        pytest.param("default", "1234", ["123", "4"], id="default-digits"),
        pytest.param("default", "'ll", ["'", "l", "l"], id="default-punctuation-first"),
        pytest.param(None, "1234", ["123", "4"], id="no-name-is-default"),
    ],
)
def test_pre_tokenizers(tmp_path: Path, pre: str | None, text: str, expected: list[str]) -> None:
    texts = sorted(pre_tokenizers.ByteLevel.alphabet()) + [merge.replace(" ", "") for merge in MERGES]
    metadata = {"ggml.model": "gpt2", "ggml.tokens": texts, "ggml.merges": MERGES, "ggml.add_bos_token": False}
    if pre is not None:
        metadata["ggml.pre"] = pre
    tokenizer = Tokenizer.from_path(write_gguf(tmp_path / "m.gguf", metadata))
    assert [texts[token_id] for token_id in tokenizer.encode(text)] == expected


def test_llama_takes_whole_words_that_are_tokens(tmp_path: Path) -> None:
    texts = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "eagle"]
    for pre, expected in (("llama-bpe", ["eagle"]), ("gpt-2", list("eagle"))):
        metadata: dict[str, Any] = {"ggml.model": "gpt2", "ggml.tokens": texts, "ggml.merges": ["a b"], "ggml.pre": pre}
        metadata |= {"ggml.tokens": [*texts, "ab"], "ggml.add_bos_token": False}
        tokenizer = Tokenizer.from_path(write_gguf(tmp_path / f"{pre}.gguf", metadata))
        assert [tokenizer.token_text(token_id) for token_id in tokenizer.encode("eagle")] == expected


@pytest.mark.parametrize(
    ("changes", "first", "last"),
    [
        pytest.param({}, False, False, id="as-in-the-file"),
        pytest.param({"ggml.add_bos_token": True}, True, False, id="bos"),
        pytest.param({"ggml.add_eos_token": True}, False, True, id="eos"),
        pytest.param({"ggml.add_bos_token": None}, False, False, id="smollm-default"),
        pytest.param({"ggml.add_bos_token": None, "ggml.pre": "llama-bpe"}, True, False, id="llama-default"),
    ],
)
def test_tokens_around_a_text(
    byte_level: tokenizers.Tokenizer, tmp_path: Path, changes: dict[str, Any], first: bool, last: bool
) -> None:
    tokenizer = Tokenizer.from_path(write_gguf(tmp_path / "m.gguf", merged(byte_level_metadata(byte_level), changes)))
    plain = tokenizer.encode("The eagle", add_special_tokens=False)
    assert tokenizer.encode("The eagle") == [1] * first + plain + [2] * last


def test_no_space_before_the_text_when_the_file_says_so(
    trained: sentencepiece.SentencePieceProcessor, tmp_path: Path
) -> None:
    metadata = sentencepiece_metadata(trained) | {"ggml.add_space_prefix": False}
    tokenizer = Tokenizer.from_path(write_gguf(tmp_path / "m.gguf", metadata))
    assert tokenizer.token_text(tokenizer.encode("The")[1])[0] == "T"
    assert tokenizer.decode(tokenizer.encode(" The")) == " The"


def test_user_defined_tokens_are_found_and_shown(byte_level: tokenizers.Tokenizer, tmp_path: Path) -> None:
    metadata = byte_level_metadata(byte_level)
    metadata["ggml.tokens"] = [*metadata["ggml.tokens"], "<tool>"]
    metadata["ggml.token_type"] = [*metadata["ggml.token_type"], int(TokenType.USER_DEFINED)]
    tokenizer = Tokenizer.from_path(write_gguf(tmp_path / "m.gguf", metadata))
    token_ids = tokenizer.encode("a<tool>b")
    assert token_ids[1] == len(metadata["ggml.tokens"]) - 1
    assert tokenizer.decode(token_ids) == "a<tool>b"


def test_end_of_turn_and_of_message_end_answers(byte_level: tokenizers.Tokenizer, tmp_path: Path) -> None:
    metadata = byte_level_metadata(byte_level) | {"ggml.eot_token_id": 0, "ggml.eom_token_id": 7}
    assert Tokenizer.from_path(write_gguf(tmp_path / "m.gguf", metadata)).eos_token_ids == {0, 2, 7}


def test_chat_template_of_the_file(byte_level_tokenizer: Tokenizer) -> None:
    text = byte_level_tokenizer.render_chat([{"role": "user", "content": "Hi"}])
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        pytest.param({"ggml.model": "bert"}, UnsupportedFeatureError, "model is 'bert'; gpt2 and llama", id="model"),
        pytest.param({"ggml.model": None}, UnsupportedFeatureError, "model is None", id="no-model"),
        pytest.param({"ggml.pre": "qwen2"}, UnsupportedFeatureError, "pre-tokenizer is 'qwen2'; supported", id="pre"),
        pytest.param({"ggml.tokens": None}, ModelFormatError, "holds no tokenizer", id="no-tokens"),
        pytest.param({"ggml.merges": None}, ModelFormatError, "merges is missing", id="no-merges"),
        pytest.param({"ggml.merges": ["a zzz"]}, ModelFormatError, "'a zzz' names tokens", id="merge-of-no-token"),
        pytest.param({"ggml.merges": ["ab"]}, ModelFormatError, "'ab' names tokens", id="merge-of-one"),
        pytest.param({"ggml.merges": [1]}, ModelFormatError, "must be a list of str", id="merges-are-numbers"),
        pytest.param({"ggml.token_type": [1]}, ModelFormatError, "1 token types", id="too-few-types"),
        pytest.param({"ggml.tokens": ["a", "a"]}, ModelFormatError, "holds 'a' twice", id="token-twice"),
        pytest.param({"ggml.eos_token_id": 9999}, ModelFormatError, "eos_token_id is 9999", id="eos-out-of-range"),
        pytest.param({"ggml.eos_token_id": "2"}, ModelFormatError, "must be of type int", id="eos-is-text"),
        pytest.param({"ggml.add_bos_token": 1}, ModelFormatError, "must be of type bool", id="flag-is-a-number"),
        pytest.param(
            {"ggml.add_bos_token": True, "ggml.bos_token_id": None}, ModelFormatError, "no bos_token_id", id="no-bos"
        ),
        pytest.param({"ggml.model": "llama"}, ModelFormatError, "one score per token", id="no-scores"),
    ],
)
def test_contradictions_are_refused(
    byte_level: tokenizers.Tokenizer, tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", merged(byte_level_metadata(byte_level), changes))
    with pytest.raises(error, match=message) as raised:
        Tokenizer.from_path(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9])
def test_truncated_files_are_refused(byte_level: tokenizers.Tokenizer, tmp_path: Path, share: float) -> None:
    path = write_gguf(tmp_path / "m.gguf", byte_level_metadata(byte_level))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ModelFormatError, match="damaged or not a GGUF file"):
        Tokenizer.from_path(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"not a model at all, but long enough to look at" * 10)
    with pytest.raises(ModelFormatError, match="damaged or not a GGUF file"):
        Tokenizer.from_path(path)


@pytest.mark.model
def test_smollm2_equals_the_conversion_of_transformers() -> None:
    path = resolve_model("smollm2-135m")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # The conversion forgets that SmolLM takes digits singly, which shows where spaces come before a digit.
    converted = reference.backend_tokenizer
    converted.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    assert isinstance(converted.model, models.BPE)
    tokenizer = Tokenizer.from_path(path)
    for text in REAL_TEXTS:
        token_ids = tokenizer.encode(text)
        assert token_ids == reference.encode(text), text
        assert tokenizer.decode(token_ids, skip_special_tokens=False) == text
        assert tokenizer.decode(token_ids) == reference.decode(token_ids, skip_special_tokens=True)
    messages = [{"role": "user", "content": "Say 12  <|im_end|>"}, {"role": "assistant", "content": "🦅"}]
    for is_open in (True, False):
        expected = reference.apply_chat_template(messages, add_generation_prompt=is_open, return_dict=False)
        assert tokenizer.apply_chat_template(messages, is_open) == expected
    assert (tokenizer.bos_token_id, tokenizer.vocab_size) == (1, 49152)
    assert tokenizer.eos_token_ids == {2}
    assert tokenizer.special_token_ids == set(range(17))


def merged(metadata: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Metadata with keys replaced, or left out where the change is None."""
    return {key: value for key, value in (metadata | changes).items() if value is not None}
