"""Tokenizers of Hugging Face folders: the same ids and text as transformers, and text that streams."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from aquiline.errors import ModelFormatError, PromptError, UnsupportedFeatureError
from aquiline.tokenizer import Tokenizer
from tests.tiny_tokenizers import (
    SPECIAL_TOKENS,
    TEXTS,
    VOCAB_SIZE,
    sentencepiece_backend,
    train_byte_level,
    train_sentencepiece,
    write_hf_folder,
)

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Say <|im_end|> and 🦅  "},
]
SENTENCEPIECE_CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf_folder(tmp_path_factory.mktemp("byte-level"), train_byte_level())


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_path(folder)


@pytest.fixture(scope="module")
def sentencepiece_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    backend = sentencepiece_backend(train_sentencepiece())
    return write_hf_folder(tmp_path_factory.mktemp("sentencepiece"), backend, SENTENCEPIECE_CONFIG)


@pytest.fixture(scope="module")
def both(tokenizer: Tokenizer, sentencepiece_folder: Path) -> list[Tokenizer]:
    return [tokenizer, Tokenizer.from_path(sentencepiece_folder)]


def edited(folder: Path, target: Path, **files: object) -> Path:
    """A copy of a model folder with JSON files replaced (`tokenizer_config={...}`) or removed (None)."""
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    for name, content in files.items():
        path = target / f"{name}.json"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
    return target


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_ids_and_text_equal_transformers(folder: Path, tokenizer: Tokenizer, text: str) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    token_ids = tokenizer.encode(text)
    assert token_ids == reference.encode(text)
    for skip_special_tokens in (True, False):
        expected = reference.decode(token_ids, skip_special_tokens, clean_up_tokenization_spaces=False)
        assert tokenizer.decode(token_ids, skip_special_tokens) == expected
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_text_of_sentencepiece_tokens_equals_transformers(sentencepiece_folder: Path, text: str) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(sentencepiece_folder)
    tokenizer = Tokenizer.from_path(sentencepiece_folder)
    token_ids = tokenizer.encode(text)
    assert token_ids == reference.encode(text)
    assert token_ids[0] == tokenizer.bos_token_id == 1
    for skip_special_tokens in (True, False):
        expected = reference.decode(token_ids, skip_special_tokens, clean_up_tokenization_spaces=False)
        assert tokenizer.decode(token_ids, skip_special_tokens) == expected


@pytest.mark.parametrize("add_generation_prompt", [True, False], ids=["open", "closed"])
def test_chat_equals_transformers(folder: Path, tokenizer: Tokenizer, add_generation_prompt: bool) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    expected = reference.apply_chat_template(MESSAGES, add_generation_prompt=add_generation_prompt, return_dict=False)
    assert tokenizer.apply_chat_template(MESSAGES, add_generation_prompt) == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=12), st.booleans())
def test_decode_equals_the_backend_for_any_tokens(
    folder: Path, tokenizer: Tokenizer, token_ids: list[int], skip_special_tokens: bool
) -> None:
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.decode(token_ids, skip_special_tokens) == reference.decode(token_ids, skip_special_tokens)


@settings(deadline=None)
@given(st.text(max_size=20))
def test_text_survives_encoding(both: list[Tokenizer], text: str) -> None:
    for tokenizer in both:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@settings(deadline=None)
@given(
    st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=10),
    st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=12),
    st.booleans(),
)
def test_streamed_text_continues_the_decoded_prompt(
    both: list[Tokenizer], prompt: list[int], output: list[int], skip_special_tokens: bool
) -> None:
    for tokenizer in both:
        before = tokenizer.decode(prompt, skip_special_tokens)
        decoder = tokenizer.new_decoder(prompt, skip_special_tokens)
        text = "".join(map(decoder.push, output)) + decoder.flush()
        if before.endswith("\ufffd"):
            continue
        assert before + text == tokenizer.decode([*prompt, *output], skip_special_tokens)


def test_streaming_keeps_the_space_between_prompt_and_output(both: list[Tokenizer]) -> None:
    tokenizer = both[1]
    prompt, output = tokenizer.encode("The"), tokenizer.encode("eagle", add_special_tokens=False)
    decoder = tokenizer.new_decoder(prompt)
    assert "".join(map(decoder.push, output)) == " eagle"
    assert tokenizer.decode(output) == "eagle"


def test_ids_of_the_model(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_token_ids == {0, 1, 2}
    assert tokenizer.eos_token_ids == {2}
    assert (tokenizer.bos_token_id, tokenizer.vocab_size) == (1, VOCAB_SIZE)
    assert tokenizer.token_text(2) == "<|im_end|>"
    assert tokenizer.token_text(10**6) == tokenizer.token_text(-1) == ""
    assert tokenizer.decode([-1, 10**6]) == ""


def test_end_ids_of_all_configs_count(folder: Path, tmp_path: Path) -> None:
    path = edited(folder, tmp_path, generation_config={"eos_token_id": [2, 0]}, config={"eos_token_id": 7})
    assert Tokenizer.from_path(path).eos_token_ids == {0, 2, 7}


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path: Path) -> None:
    backend = train_byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=50)
    tokenizer = Tokenizer.from_path(write_hf_folder(tmp_path, backend))
    assert tokenizer.decode(tokenizer.encode("The eagle flies over")) == "The eagle flies over"


def test_tokens_known_to_the_config_only(tmp_path: Path) -> None:
    content = {"content": "<|tool|>", "special": True, "normalized": False, "lstrip": False, "rstrip": False}
    config = {"eos_token": {"content": "The"}, "added_tokens_decoder": {str(VOCAB_SIZE): content}}
    tokenizer = Tokenizer.from_path(write_hf_folder(tmp_path, train_byte_level(), config))
    assert tokenizer.encode("<|tool|>") == [VOCAB_SIZE]
    assert {VOCAB_SIZE, *tokenizer.eos_token_ids} < tokenizer.special_token_ids
    assert tokenizer.decode(tokenizer.encode("The eagle")) == " eagle"


@pytest.mark.parametrize(
    ("jinja", "config", "expected"),
    [
        pytest.param("file {{ bos_token }}", "config", "file <|im_start|>", id="jinja-file-first"),
        pytest.param(None, "config {{ eos_token }}", "config <|im_end|>", id="config"),
        pytest.param(None, [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}], "d", id="named"),
    ],
)
def test_places_of_the_chat_template(tmp_path: Path, jinja: str | None, config: object, expected: str) -> None:
    settings = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": config}
    write_hf_folder(tmp_path, train_byte_level(), settings)
    if jinja is not None:
        (tmp_path / "chat_template.jinja").write_text(jinja)
    assert Tokenizer.from_path(tmp_path).render_chat(MESSAGES) == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        pytest.param({"tokenizer": None}, "has no tokenizer.json", id="missing"),
        pytest.param({"tokenizer": "{"}, "damaged or not a tokenizer", id="damaged"),
        pytest.param({"tokenizer": "{}"}, "damaged or not a tokenizer", id="not-a-tokenizer"),
        pytest.param({"tokenizer_config": "{"}, "tokenizer_config.json cannot be read", id="damaged-config"),
        pytest.param({"tokenizer_config": [1]}, "must hold a JSON object", id="config-is-a-list"),
        pytest.param({"tokenizer_config": {"eos_token": "<eos>"}}, "eos_token '<eos>' is not in", id="unknown-eos"),
        pytest.param({"tokenizer_config": {"chat_template": 3}}, "must be text", id="template-is-a-number"),
        pytest.param({"generation_config": {"eos_token_id": "2"}}, "eos_token_id is '2'", id="eos-is-text"),
        pytest.param(
            {"tokenizer_config": {"added_tokens_decoder": {"999": {"content": "<x>"}}}},
            "'<x>' should have id 999 but gets 400",
            id="id-contradicts",
        ),
        *(
            pytest.param({"tokenizer_config": {"added_tokens_decoder": added}}, message, id=f"added-{number}")
            for number, (added, message) in enumerate(
                [
                    ([1], "must map token ids"),
                    ({"x": {"content": "a"}}, "must map token ids"),
                    ({"-1": {"content": "a"}}, "must map token ids"),
                    ({"9" * 5000: {"content": "a"}}, "must map token ids"),
                    ({"400": "a"}, "no content for the token 400"),
                    ({"400": {"content": 5}}, "no content for the token 400"),
                    ({"400": {"content": "a", "lstrip": 1}}, "lstrip of the token 400 is 1"),
                    ({"400": {"content": "a", "special": "no"}}, "special of the token 400 is 'no'"),
                ]
            )
        ),
        pytest.param({"tokenizer_config": {"eos_token": 5}}, "eos_token is 5", id="eos-is-a-number"),
        pytest.param({"tokenizer_config": {"bos_token": ["a"]}}, "bos_token is ", id="bos-is-a-list"),
        pytest.param({"tokenizer_config": {"chat_template": ["a"]}}, "must be text", id="template-is-a-list"),
        pytest.param({"tokenizer_config": {"chat_template": [{"name": "default"}]}}, "must be text", id="no-template"),
        pytest.param(
            {"tokenizer_config": '{"a": ' + "[" * 100_000}, "tokenizer_config.json cannot be read", id="deep-config"
        ),
    ],
)
def test_damaged_folders_are_refused(folder: Path, tmp_path: Path, files: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message) as raised:
        Tokenizer.from_path(edited(folder, tmp_path, **files))
    assert "\n" not in str(raised.value)


class PanicException(BaseException):
    """What Rust's panics become: deliberately no Exception."""


def test_a_tokenizer_that_panics_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Panicking:
        @staticmethod
        def from_file(path: str) -> None:
            raise PanicException("index out of bounds")

    monkeypatch.setattr(tokenizers, "Tokenizer", Panicking)
    with pytest.raises(ModelFormatError, match="damaged or not a tokenizer: index out of bounds"):
        Tokenizer.from_path(folder)


def test_settings_that_are_null_are_none(folder: Path, tmp_path: Path) -> None:
    config = {"added_tokens_decoder": None, "eos_token": None, "chat_template": None}
    tokenizer = Tokenizer.from_path(edited(folder, tmp_path, tokenizer_config=config))
    assert not tokenizer.has_chat_template
    assert not tokenizer.eos_token_ids


def test_a_tokenizer_that_draws_lots_is_refused(tmp_path: Path) -> None:
    """With dropout one prompt would have other tokens, and another answer, each time."""
    content = json.loads(train_byte_level().to_str())
    content["model"]["dropout"] = 0.1
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UnsupportedFeatureError, match=r"tokenizer\.json: .* \(dropout 0\.1\)"):
        Tokenizer.from_path(tmp_path)


@pytest.mark.parametrize(
    "decoder", [None, decoders.WordPiece(), decoders.Metaspace()], ids=["none", "wordpiece", "meta"]
)
def test_other_ways_to_join_tokens_are_refused(tmp_path: Path, decoder: Any) -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    if decoder is not None:
        backend.decoder = decoder
    with pytest.raises(UnsupportedFeatureError, match="decoder is"):
        Tokenizer.from_path(write_hf_folder(tmp_path, backend, {}))


@pytest.mark.parametrize("text", [None, 3, b"a"], ids=["none", "number", "bytes"])
def test_prompts_must_be_text(tokenizer: Tokenizer, text: Any) -> None:
    with pytest.raises(PromptError, match="must be text"):
        tokenizer.encode(text)


def test_lone_surrogates_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(PromptError, match="lone surrogate at character 2"):
        tokenizer.encode("ab\ud800")


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        pytest.param([], "non-empty list", id="empty"),
        pytest.param("hello", "non-empty list", id="text"),
        pytest.param({"role": "user", "content": "a"}, "non-empty list", id="one-object"),
        pytest.param(["hello"], r"messages\[0\] is 'hello'", id="text-in-list"),
        pytest.param([{"content": "a"}], r"messages\[0\] has the role None", id="no-role"),
        pytest.param([{"role": "user"}], r"messages\[0\] has content of type NoneType", id="no-content"),
        pytest.param(
            [MESSAGES[0], {"role": "user", "content": 3}], r"messages\[1\] has content of type int", id="number"
        ),
        pytest.param([{"role": "user", "content": [{"type": "image"}]}], "text or text parts", id="image"),
        pytest.param([{"role": "pirate", "content": "a"}], "refuses these messages: unknown role pirate", id="role"),
    ],
)
def test_malformed_messages_are_refused(tokenizer: Tokenizer, messages: Any, message: str) -> None:
    with pytest.raises(PromptError, match=message) as raised:
        tokenizer.apply_chat_template(messages)
    assert "\n" not in str(raised.value)


def test_text_parts_are_joined(tokenizer: Tokenizer) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    joined = tokenizer.apply_chat_template([{"role": "user", "content": "a\nb"}])
    assert tokenizer.apply_chat_template([{"role": "user", "content": parts}]) == joined


@pytest.fixture
def with_template(tmp_path: Path) -> Callable[[str], Tokenizer]:
    def build(template: str) -> Tokenizer:
        return Tokenizer.from_path(write_hf_folder(tmp_path, train_byte_level(), {"chat_template": template}))

    return build


def test_a_model_without_a_template_refuses_messages(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_path(write_hf_folder(tmp_path, train_byte_level(), {}))
    assert not tokenizer.has_chat_template
    with pytest.raises(PromptError, match="no chat template"):
        tokenizer.apply_chat_template(MESSAGES)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].nothing.more }}",
        "{{ 'a' + 1 }}",
        "{{ messages[9]['role'] }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 1 / 0 }}",
        "{{ 5|dictsort }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
    ids=["undefined", "type", "index", "mutation", "escape", "division", "attribute", "recursion"],
)
def test_templates_that_trip_are_prompt_errors(with_template: Callable[[str], Tokenizer], template: str) -> None:
    with pytest.raises(PromptError, match="refuses these messages"):
        with_template(template).render_chat(MESSAGES)


@pytest.mark.parametrize("template", ["{% for %}", "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}"], ids=["for", "deep"])
def test_templates_that_do_not_parse_are_format_errors(
    with_template: Callable[[str], Tokenizer], template: str
) -> None:
    with pytest.raises(ModelFormatError, match="template is not valid"):
        with_template(template).render_chat(MESSAGES)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        pytest.param("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}', id="tojson"),
        pytest.param("{{ strftime_now('%%') }}", "%", id="strftime"),
        pytest.param("{% generation %}a{% endgeneration %}b", "ab", id="generation"),
        pytest.param("{% for m in messages %}{% break %}{% endfor %}a", "a", id="loop-controls"),
        pytest.param("  {% if true %}\na\n  {% endif %}\n", "a\n", id="whitespace"),
        pytest.param("{{ tools is none }}", "True", id="no-tools"),
    ],
)
def test_conventions_of_templates(with_template: Callable[[str], Tokenizer], template: str, expected: str) -> None:
    assert with_template(template).render_chat(MESSAGES) == expected


def test_special_tokens_in_prompts_are_tokens(tokenizer: Tokenizer) -> None:
    assert [tokenizer.encode(text) for text in SPECIAL_TOKENS] == [[0], [1], [2]]


def decode_stream(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    decoder = tokenizer.new_decoder(())
    return "".join(map(decoder.push, token_ids)) + decoder.flush()


def test_byte_tokens_stream_as_whole_characters(both: list[Tokenizer]) -> None:
    for tokenizer in both:
        token_ids = tokenizer.encode("x🦅鷹y", add_special_tokens=False)
        assert decode_stream(tokenizer, token_ids) == "x🦅鷹y"


def test_a_long_text_holds_up_no_other_thread(tokenizer: Tokenizer) -> None:
    is_done = threading.Event()

    def encode() -> None:
        tokenizer.encode("1a " * 300_000)
        is_done.set()

    worker = threading.Thread(target=encode)
    worker.start()
    num_turns = 0
    while not is_done.wait(0.001):
        num_turns += 1
    worker.join()
    # A thread that cannot run while the text is encoded gets its first turn when that is over.
    assert num_turns > 10
