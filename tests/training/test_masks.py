"""Masks of answers, against conversations put together piece by piece."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aquiline.errors import PromptError, TrainingDataError
from aquiline.model_store import cached_path
from aquiline.tokenizer import Tokenizer
from aquiline.training.examples import TrainingExample
from aquiline.training.masks import check_template, encode_answered, encode_conversation
from tests.quickstart_model import IS_ON_DISK, PULL_IT, QUICKSTART_MODEL
from tests.tiny_tokenizers import CHAT_TEMPLATE, train_byte_level, write_hf_folder

END = "<|im_end|>"
# Each writes `system`, `user` and `assistant` in its own way; all put special tokens around what is said.
TEMPLATES = {
    "chatml": CHAT_TEMPLATE,
    "chatml with a default system message": (
        "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}" + CHAT_TEMPLATE
    ),
    "trimmed, no line end behind an answer": (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}<|im_start|>{{ message['content'] | trim }}"
        "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant<|im_start|>{% endif %}"
    ),
    "answers in line with questions": (
        "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ message['content'] }}<|im_end|>"
        "{% else %}<|im_start|>[{{ message['role'] }}] {{ message['content'] }}<|endoftext|>{% endif %}{% endfor %}"
    ),
}
HEADS = {
    "chatml": ("<|im_start|>{role}\n", END + "\n", "<|im_start|>assistant\n", "\n"),
    "chatml with a default system message": ("<|im_start|>{role}\n", END + "\n", "<|im_start|>assistant\n", "\n"),
    "trimmed, no line end behind an answer": (
        "<|im_start|>{role}<|im_start|>",
        END,
        "<|im_start|>assistant<|im_start|>",
        "",
    ),
    "answers in line with questions": ("<|im_start|>[{role}] ", "<|endoftext|>", "", ""),
}
SAID = st.text(st.sampled_from("ab é鷹\n1 .,"), min_size=1, max_size=12).map(lambda text: f"x{text}x")


@pytest.fixture(scope="module", params=list(TEMPLATES))
def templated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Tokenizer]:
    return request.param, tokenizer_of(tmp_path_factory.mktemp("tokenizer"), TEMPLATES[request.param])


def tokenizer_of(folder: Path, template: str | None) -> Tokenizer:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
    if template is not None:
        config["chat_template"] = template
    return Tokenizer.from_path(write_hf_folder(folder, train_byte_level(), config))


def turns_of(texts: list[str], system: str | None = None) -> list[dict[str, str]]:
    """User and assistant in turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]
    return messages if system is None else [{"role": "system", "content": system}, *messages]


def reference_example(name: str, tokenizer: Tokenizer, messages: list[dict[str, str]]) -> TrainingExample:
    """Head, text and tail of each message encoded apart: special tokens stand between them."""
    head, tail, answer_head, behind_answer = HEADS[name]
    token_ids: list[int] = []
    is_answer: list[bool] = []

    def add(text: str, flag: bool) -> None:
        pieces = tokenizer.encode(text, add_special_tokens=False)
        token_ids.extend(pieces)
        is_answer.extend([flag] * len(pieces))

    if name == "chatml with a default system message" and messages[0]["role"] != "system":
        add(f"<|im_start|>system\nBe kind.{END}\n", False)
    for message in messages:
        if message["role"] == "assistant":
            add(answer_head, False)
            add(message["content"] + END, True)
            add(behind_answer, False)
        else:
            add(head.format(role=message["role"]) + message["content"] + tail, False)
    end = max(index for index, flag in enumerate(is_answer) if flag) + 1
    return TrainingExample(tuple(token_ids[:end]), tuple(is_answer[:end]))


@given(texts=st.lists(SAID, min_size=2, max_size=7), system=st.none() | SAID)
def test_ids_and_mask_are_those_of_the_pieces(
    templated: tuple[str, Tokenizer], texts: list[str], system: str | None
) -> None:
    name, tokenizer = templated
    messages = turns_of(texts, system)
    example = encode_conversation(tokenizer, messages, tokenizer.eos_token_ids)
    last = max(index for index, message in enumerate(messages) if message["role"] == "assistant")
    assert example == reference_example(name, tokenizer, messages[: last + 1])


@given(texts=st.lists(SAID, min_size=2, max_size=6))
def test_the_prompt_of_the_last_answer_is_that_of_serving(templated: tuple[str, Tokenizer], texts: list[str]) -> None:
    messages = turns_of(texts)
    for turn in range(1, len(messages), 2):
        example = encode_conversation(templated[1], messages[: turn + 1], templated[1].eos_token_ids)
        served = templated[1].apply_chat_template(messages[:turn])
        assert list(example.token_ids[: len(served)]) == served
        assert all(example.is_answer[len(served) :])


@given(texts=st.lists(SAID, min_size=1, max_size=5).filter(lambda texts: len(texts) % 2 == 1))
def test_an_answer_just_written_keeps_its_own_tokens(templated: tuple[str, Tokenizer], texts: list[str]) -> None:
    """One token for each byte: not what the tokenizer would make of the text."""
    _, tokenizer = templated
    messages = turns_of(texts)
    written = [*tokenizer.encode("a", False), *tokenizer.encode("b", False), *tokenizer.eos_token_ids]
    example = encode_answered(tokenizer, messages, written, tokenizer.eos_token_ids, "chat")
    served = tokenizer.apply_chat_template(messages)
    assert example.token_ids == (*served, *written) and example.category == "chat"
    assert example.is_answer[len(served) :] == (True,) * len(written)
    if len(texts) > 1:
        whole = encode_conversation(tokenizer, messages[:-1], tokenizer.eos_token_ids)
        assert example.is_answer[: len(whole.is_answer)] == whole.is_answer
    else:
        assert not any(example.is_answer[: len(served)])


def test_a_first_character_that_would_join_the_prompt_does_not(templated: tuple[str, Tokenizer]) -> None:
    """An answer that begins with a line end: the prompt keeps its tokens, and the answer gets its own."""
    name, tokenizer = templated
    if "trimmed" in name:
        pytest.skip("this template drops line ends at the beginning of an answer")
    messages = turns_of(["hi", "\n\n\nso"])
    example = encode_conversation(tokenizer, messages, tokenizer.eos_token_ids)
    served = tokenizer.apply_chat_template(messages[:1])
    answer = [token_id for token_id, flag in zip(example.token_ids, example.is_answer, strict=True) if flag]
    assert list(example.token_ids[: len(served)]) == served
    assert tokenizer.decode(answer) == "\n\n\nso" and answer[-1] in tokenizer.eos_token_ids


def test_an_end_token_inside_an_answer_ends_it(templated: tuple[str, Tokenizer]) -> None:
    tokenizer = templated[1]
    example = encode_conversation(tokenizer, turns_of(["hi", f"one{END}two", "so?", "yes"]), tokenizer.eos_token_ids)
    answers = [token_id for token_id, flag in zip(example.token_ids, example.is_answer, strict=True) if flag]
    assert tokenizer.decode(answers) == "oneyes"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        ("{% for m in messages %}{{ m['content'] }}\n{% endfor %}", "no roles"),
        ("{{ messages[0]['content'] }}", "drops what"),
        ("{{ raise_exception('never') }}", "refuses a question and its answer: .*never"),
    ],
    ids=["none", "without roles", "first only", "refusing"],
)
def test_templates_that_hide_answers_are_refused(tmp_path: Path, template: str | None, message: str) -> None:
    with pytest.raises(TrainingDataError, match=message):
        check_template(tokenizer_of(tmp_path, template))


def test_templates_that_show_answers_are_taken(templated: tuple[str, Tokenizer]) -> None:
    check_template(templated[1])


def test_a_template_may_insist_on_turns(tmp_path: Path) -> None:
    strict = (
        "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{{ m['content'] }}<|im_end|>{% endfor %}"
    )
    check_template(tokenizer_of(tmp_path, strict))


def test_a_template_that_renders_history_otherwise_is_refused(tmp_path: Path) -> None:
    forgetful = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
        "{% if m['role'] == 'assistant' and not loop.last %}...{% else %}{{ m['content'] }}{% endif %}<|im_end|>"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = tokenizer_of(tmp_path, forgetful)
    with pytest.raises(TrainingDataError, match=r"messages\[1\] otherwise"):
        encode_conversation(tokenizer, turns_of(["a", "b", "c", "d"]), tokenizer.eos_token_ids)


def test_conversations_without_an_answer_are_refused(templated: tuple[str, Tokenizer]) -> None:
    with pytest.raises(TrainingDataError, match="no assistant turn"):
        encode_conversation(templated[1], turns_of(["hi"]), templated[1].eos_token_ids)
    with pytest.raises(TrainingDataError, match="begins with an assistant turn"):
        encode_conversation(templated[1], turns_of(["hi", "ho"])[1:], templated[1].eos_token_ids)
    with pytest.raises(PromptError, match="non-empty list"):
        encode_conversation(templated[1], [], templated[1].eos_token_ids)


@pytest.mark.model
@pytest.mark.skipif(not IS_ON_DISK, reason=PULL_IT)
def test_the_quickstart_model_ends_its_answers_as_trained() -> None:
    tokenizer = Tokenizer.from_path(cached_path(QUICKSTART_MODEL))
    check_template(tokenizer)
    example = encode_conversation(
        tokenizer, turns_of(["Hi", "Hello there!", "Bye", "So long."]), tokenizer.eos_token_ids
    )
    shown = "".join(
        tokenizer.token_text(token_id) if flag else "\0"
        for token_id, flag in zip(example.token_ids, example.is_answer, strict=True)
    )
    assert [part for part in shown.split("\0") if part] == ["Hello there!<|im_end|>", "So long.<|im_end|>"]
