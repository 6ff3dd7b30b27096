"""Prompts from the command line and from JSONL files, checked before any model is loaded."""

from __future__ import annotations

import json
import reprlib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aquiline.errors import PromptError
from aquiline.json_line import json_fault

Message = Mapping[str, Any]
KINDS = ("prompt", "messages", "turns")
EXAMPLE = '{"prompt": "Hello"}'
STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One thing to answer.

    Attributes:
        text: the raw prompt, or the last message of the conversation.
        messages: the conversation that the chat template gets.
        category: what kind of task it is, where the file says so.
    """

    text: str
    messages: tuple[Message, ...]
    category: str = ""


def read_prompts(texts: Sequence[str], file_name: str | None, is_raw: bool) -> tuple[Prompt, ...]:
    """The prompts `texts`, then those of the JSONL file `file_name` (`-` is standard input).

    Each line of the file is an object with exactly one of `prompt` (a text), `messages` (a conversation of objects
    with `role` and `content`) or `turns` (a list of texts, as in MT-bench, of which the first is asked). Other keys
    are left to the file's owner, but none may be there twice; empty lines are skipped. `is_raw` says that no chat
    template will be applied, which rules out `messages`.

    Raises:
        PromptError: no prompt at all, an empty one, or a file that cannot be read or understood; the message names
            the file and the line.
    """
    prompts = [_from_text(text, "--prompt") for text in texts]
    if file_name is not None:
        prompts += _read_file(file_name, is_raw)
    if not prompts:
        raise PromptError("there is nothing to answer; give --prompt TEXT or --prompts FILE.jsonl")
    return tuple(prompts)


def _read_file(file_name: str, is_raw: bool) -> list[Prompt]:
    shown = "standard input" if file_name == STANDARD_INPUT else file_name
    if file_name == STANDARD_INPUT and sys.stdin is None:
        raise PromptError("standard input is closed; --prompts takes a JSONL file or -")
    try:
        content = sys.stdin.buffer.read() if file_name == STANDARD_INPUT else Path(file_name).read_bytes()
    except OSError as error:
        raise PromptError(f"{shown} cannot be read: {error.strerror}; --prompts takes a JSONL file or -") from None
    prompts = []
    for line_number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            prompts.append(_from_line(line, f"{shown} line {line_number}", is_raw))
    if not prompts:
        raise PromptError(f"{shown} holds no prompts; each line must be an object with {' or '.join(KINDS)}")
    return prompts


def _from_line(line: bytes, place: str, is_raw: bool) -> Prompt:
    try:
        entry = json.loads(line.decode(), object_pairs_hook=_unique_keys)
    except UnicodeDecodeError:
        raise PromptError(f"{place} is not UTF-8 text; save the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{place} is not JSON: {json_fault(error)}; write an object such as {EXAMPLE}") from None
    if not isinstance(entry, dict):
        raise PromptError(f"{place} must be an object such as {EXAMPLE}, not {reprlib.repr(entry)}")
    given = [kind for kind in KINDS if kind in entry]
    if len(given) != 1:
        found = " and ".join(given) if given else "none of them"
        raise PromptError(f"{place} must be an object with exactly one of {', '.join(KINDS)}; it has {found}")
    category = entry.get("category")
    return replace(_from_value(given[0], entry[given[0]], place, is_raw), category=str(category or ""))


def _from_value(kind: str, value: Any, place: str, is_raw: bool) -> Prompt:
    if kind == "messages":
        return _from_messages(value, place, is_raw)
    if kind == "turns":
        if not isinstance(value, list) or not value:
            raise PromptError(f"{place}: turns must be a list of texts, of which the first is asked")
        value = value[0]
    return _from_text(value, place)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; a key that stands there twice would drop one of its values."""
    entry = dict(pairs)
    if len(entry) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"the key {reprlib.repr(counts.most_common(1)[0][0])} is there more than once")
    return entry


def _from_text(text: object, place: str) -> Prompt:
    checked = _checked_text(text, place, "the prompt")
    if not checked:
        raise PromptError(f"{place}: the prompt is empty; give at least one character")
    return Prompt(checked, ({"role": "user", "content": checked},))


def _from_messages(messages: object, place: str, is_raw: bool) -> Prompt:
    if is_raw:
        raise PromptError(f"{place}: messages need the chat template; leave out --raw or give a prompt")
    if not isinstance(messages, list) or not messages:
        raise PromptError(f"{place}: messages must be a list of at least one object with role and content")
    for message in messages:
        if not isinstance(message, dict):
            raise PromptError(
                f"{place}: {reprlib.repr(message)} is not a message; write an object with role and content"
            )
        for key in ("role", "content"):
            _checked_text(message.get(key), place, f"a message's {key}")
        if not message["role"]:
            raise PromptError(f"{place}: a message's role is empty; write system, user or assistant")
    return Prompt(messages[-1]["content"], tuple(messages))


def _checked_text(text: object, place: str, name: str) -> str:
    if not isinstance(text, str):
        raise PromptError(f"{place}: {name} is {reprlib.repr(text)}; it must be a text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PromptError(f"{place}: {name} holds bytes or half characters that are not valid Unicode") from None
    return text
