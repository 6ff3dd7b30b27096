"""From a conversation to token ids and the mask of what the model writes, by the template that serves it.

Worked example. The template renders two turns of each side, and `|` parts the tokens:

    text     <user>|Hi|<end>|<assistant>|Hel|lo|<end>|<user>|Bye|<end>|<assistant>|Ta|ta|<end>
    mask       0    0   0        0        1   1   1     0     0    0       0       1  1   1

An answer begins where the prompt that asks for it ends, and ends with the token that makes the engine stop: the model
has to write that one too. Whatever a template puts behind it is not written by the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aquiline.chat_template import check_messages
from aquiline.errors import PromptError, TrainingDataError
from aquiline.tokenizer import Tokenizer
from aquiline.training.examples import TrainingExample

Message = Mapping[str, Any]
ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Span:
    """Where a piece of text lies, in bytes of its UTF-8; `end` is excluded."""

    start: int
    end: int


def encode_conversation(
    tokenizer: Tokenizer, messages: Sequence[Message], eos_token_ids: frozenset[int], category: str = ""
) -> TrainingExample:
    """A whole conversation as an example; it ends with the last token of its last answer.

    The ids up to the last answer are those that the engine gets when it is asked for that answer.

    Args:
        messages: with `role` and `content`; every assistant turn is an answer.
        eos_token_ids: tokens at which the engine ends an answer.

    Raises:
        TrainingDataError: no assistant turn, one that the template renders otherwise than it asks for it, or a text
            that the tokenizer changes, so that answers cannot be told from the rest.
        PromptError: malformed messages, or messages that the template refuses.
    """
    check_messages(messages)
    turns = _answer_turns(messages)
    if not turns:
        raise TrainingDataError(
            "the conversation has no assistant turn, and there is nothing to learn from it; "
            "train-data --regenerate has the target answer questions"
        )
    if turns[0] == 0:
        raise TrainingDataError("the conversation begins with an assistant turn; put what it answers before it")
    last = turns[-1]
    prompt = tokenizer.render_chat(messages[:last], add_generation_prompt=True)
    whole = tokenizer.render_chat(messages[: last + 1], add_generation_prompt=False)
    _require_prefix(prompt, whole, last)
    prompt_ids, token_ids = _encode(tokenizer, prompt), _encode(tokenizer, whole)
    if token_ids[: len(prompt_ids)] != prompt_ids:  # the last token of the prompt would join the first of the answer
        token_ids = prompt_ids + _encode(tokenizer, whole[len(prompt) :])
    written = len(prompt_ids)
    is_answer = answer_mask(tokenizer, messages[:last], prompt, prompt_ids, eos_token_ids)
    end = _end_of_answer(token_ids, written, eos_token_ids)
    return TrainingExample(tuple(token_ids[:end]), tuple(is_answer + [True] * (end - written)), category)


def encode_answered(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    answer_ids: Sequence[int],
    eos_token_ids: frozenset[int],
    category: str = "",
) -> TrainingExample:
    """A conversation whose last answer was just written by the model, with the very ids that it wrote.

    Args:
        messages: what was asked, earlier answers among them.
        answer_ids: output token ids, with the token that ended the answer if one did.

    Raises:
        TrainingDataError, PromptError: as `encode_conversation`; or there is no answer.
    """
    prompt = tokenizer.render_chat(messages, add_generation_prompt=True)
    prompt_ids = _encode(tokenizer, prompt)
    is_answer = answer_mask(tokenizer, messages, prompt, prompt_ids, eos_token_ids)
    return TrainingExample((*prompt_ids, *answer_ids), (*is_answer, *[True] * len(answer_ids)), category)


def answer_mask(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    prompt: str,
    prompt_ids: Sequence[int],
    eos_token_ids: frozenset[int],
) -> list[bool]:
    """For each token of a rendered prompt whether it belongs to an earlier answer.

    Args:
        prompt: `messages` rendered, ready for the next answer, and `prompt_ids` its tokens.

    Raises:
        TrainingDataError: answers cannot be found in the prompt.
    """
    turns = _answer_turns(messages)
    if not turns:
        return [False] * len(prompt_ids)
    spans = token_spans(tokenizer, prompt, prompt_ids)
    is_answer = [False] * len(prompt_ids)
    for turn in turns:
        before = tokenizer.render_chat(messages[:turn], add_generation_prompt=True)
        after = tokenizer.render_chat(messages[: turn + 1], add_generation_prompt=False)
        _require_prefix(before, after, turn)
        _require_prefix(after, prompt, turn)
        answer = Span(len(before.encode()), len(after.encode()))
        for index, span in enumerate(spans):
            if answer.start <= span.start < span.end <= answer.end:
                is_answer[index] = True
                if prompt_ids[index] in eos_token_ids:
                    break
    return is_answer


def token_spans(tokenizer: Tokenizer, text: str, token_ids: Sequence[int]) -> list[Span]:
    """Where each token of a text lies in its bytes.

    Some tokenizers put a space before the text, or behind each special token, that the text does not have; it takes no
    room.

    Raises:
        TrainingDataError: the tokens are not those of this text, for the tokenizer changes it (it normalises accents,
            for example).
    """
    encoded, position, spans = text.encode(), 0, []
    for token_id in token_ids:
        piece = tokenizer.token_bytes(token_id)
        if not encoded.startswith(piece, position):
            piece = piece.removeprefix(b" ")
            if not encoded.startswith(piece, position):
                raise TrainingDataError(
                    f"the tokenizer changes the text at byte {position}, so that answers cannot be told from the rest;"
                    " write the text in the form that the tokenizer gives it, such as Unicode NFC"
                )
        spans.append(Span(position, position + len(piece)))
        position += len(piece)
    if position != len(encoded):
        raise TrainingDataError(f"the tokenizer drops the text from byte {position} on; answers cannot be found in it")
    return spans


def check_template(tokenizer: Tokenizer) -> None:
    """Make sure that the chat template can tell answers from the rest.

    Raises:
        TrainingDataError: there is no template, it drops what is said, or it does not tell user and assistant apart.
    """
    if not tokenizer.has_chat_template:
        raise TrainingDataError(
            "the model has no chat template; a draft is trained on conversations as they are served"
        )
    said, answered = "what the user says", "what the assistant says"
    turns = [{"role": "user", "content": said}, {"role": ASSISTANT, "content": answered}]
    try:
        whole = tokenizer.render_chat(turns, add_generation_prompt=False)
    except PromptError as error:
        raise TrainingDataError(f"the chat template refuses a question and its answer: {error}") from error
    if said not in whole or answered not in whole:
        raise TrainingDataError("the chat template drops what user or assistant say; give the model a complete one")
    try:
        without_roles = tokenizer.render_chat([turns[0], {"role": "user", "content": answered}], False)
    except PromptError:
        return  # it refuses two questions in a row, so it knows who speaks
    if without_roles == whole:
        raise TrainingDataError("the chat template has no roles: it renders user and assistant alike; give it roles")


def _answer_turns(messages: Sequence[Message]) -> list[int]:
    return [index for index, message in enumerate(messages) if message.get("role") == ASSISTANT]


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """As `Tokenizer.apply_chat_template` does: templates write their own special tokens."""
    return tokenizer.encode(text, add_special_tokens=False)


def _require_prefix(shorter: str, longer: str, turn: int) -> None:
    if not longer.startswith(shorter):
        raise TrainingDataError(
            f"the chat template renders messages[{turn}] otherwise than it asks for it or repeats it, so that the "
            "answer cannot be found; end the conversation before it, or use a template that only appends"
        )


def _end_of_answer(token_ids: Sequence[int], start: int, eos_token_ids: frozenset[int]) -> int:
    """Behind the first token that ends an answer; the very end with a template that has none."""
    for index in range(start, len(token_ids)):
        if token_ids[index] in eos_token_ids:
            return index + 1
    return len(token_ids)
