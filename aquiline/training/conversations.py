"""Reads conversations from JSONL files, in the two forms that are about.

    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}
    {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]}
    {"prompt": "Hi"}                                                  only where answers are written anew

Beside it a line may have a `category`; other keys are left to the file's owner.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aquiline.errors import TrainingDataError
from aquiline.json_line import json_fault

FORMS = ("messages", "conversations", "prompt")
ROLES = ("system", "user", "assistant")
# What the ShareGPT form calls those who speak.
ROLE_OF_SPEAKER = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
}


@dataclass(frozen=True, slots=True)
class Conversation:
    """One line of a file.

    Attributes:
        messages: with `role` (system, user or assistant) and `content`.
        category: what kind it is; empty when the line does not say.
        place: file and line, for messages.
    """

    messages: tuple[Mapping[str, str], ...]
    category: str
    place: str


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that holds no conversation: where it is, and what is wrong."""

    place: str
    reason: str


def read_conversations(paths: Sequence[Path]) -> Iterator[Conversation | BadLine]:
    """What the lines of some files hold, in order; empty lines are passed over.

    Raises:
        TrainingDataError: a file that cannot be read, or has no line that is not empty.
    """
    for path in paths:
        num_lines = 0
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    stripped = line.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else line.strip()
                    if stripped:
                        num_lines += 1
                        yield _read_line(stripped, f"{path} line {number}")
        except OSError as error:
            raise TrainingDataError(f"{path} cannot be read ({error.strerror}); --data takes JSONL files") from None
        if not num_lines:
            raise TrainingDataError(f"{path} is empty; each line must be an object with messages or conversations")


def _read_line(line: bytes, place: str) -> Conversation | BadLine:
    try:
        entry = json.loads(line.decode())
    except UnicodeDecodeError:
        return BadLine(place, "it is not UTF-8 text; save the file as UTF-8")
    except (ValueError, RecursionError) as error:
        return BadLine(place, f"it is not JSON: {json_fault(error)}")
    try:
        messages = _messages_of(entry)
        category = entry.get("category", "")
        if not isinstance(category, str):
            raise TrainingDataError(f"category is {reprlib.repr(category)}; it must be text")
    except TrainingDataError as error:
        return BadLine(place, str(error))
    return Conversation(messages, category, place)


def _messages_of(entry: object) -> tuple[Mapping[str, str], ...]:
    given = [form for form in FORMS if isinstance(entry, dict) and form in entry]
    if not isinstance(entry, dict) or len(given) != 1:
        found = " and ".join(given) if given else "none of them"
        raise TrainingDataError(f"it must be an object with exactly one of {', '.join(FORMS)}; it has {found}")
    form, value = given[0], entry[given[0]]
    if form == "prompt":
        return ({"role": "user", "content": _text(value, "prompt")},)
    if not isinstance(value, list) or not value:
        raise TrainingDataError(f"{form} must be a list of at least one object")
    messages = []
    for number, message in enumerate(value):
        name = f"{form}[{number}]"
        if not isinstance(message, dict):
            raise TrainingDataError(f"{name} is {reprlib.repr(message)}; it must be an object")
        messages.append(_message(message, name) if form == "messages" else _speech(message, name))
    return tuple(messages)


def _message(message: Mapping[str, Any], name: str) -> Mapping[str, str]:
    role = message.get("role")
    if role not in ROLES:
        raise TrainingDataError(f"{name} has the role {reprlib.repr(role)}; roles are {', '.join(ROLES)}")
    return {"role": role, "content": _text(message.get("content"), f"the content of {name}")}


def _speech(message: Mapping[str, Any], name: str) -> Mapping[str, str]:
    speaker = message.get("from")
    if not isinstance(speaker, str) or speaker not in ROLE_OF_SPEAKER:
        raise TrainingDataError(f"{name} is from {reprlib.repr(speaker)}; speakers are {', '.join(ROLE_OF_SPEAKER)}")
    return {"role": ROLE_OF_SPEAKER[speaker], "content": _text(message.get("value"), f"the value of {name}")}


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TrainingDataError(f"{name} is {reprlib.repr(value)}; it must be text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise TrainingDataError(f"{name} holds half characters that are not valid Unicode") from None
    return value
