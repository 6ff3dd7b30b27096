"""Reads the tokenizer of a Hugging Face model folder."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from aquiline.errors import ModelFormatError, UnsupportedFeatureError
from aquiline.tokenizer_parts import TokenizerParts, add_token

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def read_hf_tokenizer(folder: Path) -> TokenizerParts:
    """Read `tokenizer.json` and what `tokenizer_config.json`, chat template and model configs add to it.

    Ids that end an answer are those named by tokenizer, generation and model config together.

    Raises:
        ModelFormatError: a file is missing, damaged, or contradicts another.
        UnsupportedFeatureError: a tokenizer that gives one text different tokens each time.
    """
    backend = _read_backend(folder)
    config = _read_json(folder / "tokenizer_config.json")
    named_tokens = _named_tokens(_read_json(folder / "special_tokens_map.json") | config, folder)
    for token, token_id in _configured_tokens(config, named_tokens, backend, folder):
        add_token(backend, token, token_id, folder)
    end_ids = {
        token_id
        for name in ("generation_config.json", "config.json")
        for token_id in _end_ids(_read_json(folder / name), folder / name)
    }
    if "eos_token" in named_tokens:
        end_ids.add(_id_of(backend, named_tokens["eos_token"], "eos_token", folder))
    bos_token = named_tokens.get("bos_token")
    return TokenizerParts(
        backend=backend,
        source=folder,
        bos_token_id=None if bos_token is None else _id_of(backend, bos_token, "bos_token", folder),
        eos_token_ids=frozenset(end_ids),
        named_tokens=named_tokens,
        chat_template=_chat_template(folder, config),
    )


def _read_backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelFormatError(
            f"{folder} has no tokenizer.json; if it is a draft, pass it as --draft, else write one with transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except BaseException as error:
        # The tokenizers package knows no exception more special than Exception, and where it panics, one outside of it.
        if type(error) is Exception or type(error).__name__ == "PanicException":
            raise ModelFormatError(f"{path} is damaged or not a tokenizer: {_one_line(error)}") from error
        raise
    dropout = getattr(backend.model, "dropout", None)
    if dropout:
        raise UnsupportedFeatureError(
            f"{path}: the model drops merges at random (dropout {dropout:g}), as in training; set dropout to null"
        )
    backend.no_truncation()
    backend.no_padding()
    return backend


def _configured_tokens(
    config: Mapping[str, Any], named_tokens: Mapping[str, str], backend: tokenizers.Tokenizer, folder: Path
) -> Iterator[tuple[tokenizers.AddedToken, int]]:
    """Added tokens that only `tokenizer_config.json` knows, and named tokens not yet marked special."""
    known = backend.get_added_tokens_decoder()
    added = config.get("added_tokens_decoder") or {}
    if not isinstance(added, dict) or not all(map(_is_token_id, added)):
        raise ModelFormatError(f"{folder}: added_tokens_decoder must map token ids to their settings")
    for text_id, fields in added.items():
        if int(text_id) not in known:
            yield _added_token(text_id, fields, folder), int(text_id)
    known = backend.get_added_tokens_decoder()
    special = {token.content for token in known.values() if token.special}
    for content in named_tokens.values():
        token_id = backend.token_to_id(content)
        if content not in special and token_id is not None:
            yield tokenizers.AddedToken(content, special=True, normalized=False), token_id


def _is_token_id(text: str) -> bool:
    return re.fullmatch("[0-9]{1,10}", text) is not None


def _added_token(text_id: str, fields: object, folder: Path) -> tokenizers.AddedToken:
    if not isinstance(fields, dict) or not isinstance(fields.get("content"), str):
        raise ModelFormatError(
            f"{folder}: added_tokens_decoder has no content for the token {text_id}; it must be text"
        )
    flags = {name: fields[name] for name in TOKEN_FLAGS if name in fields}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ModelFormatError(f"{folder}: {name} of the token {text_id} is {value!r}; it must be true or false")
    return tokenizers.AddedToken(fields["content"], **flags)


def _named_tokens(config: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Each is written as its text, or as an object whose `content` is the text; null stands for none."""
    named = {}
    for name in NAMED_TOKENS:
        value = config.get(name)
        content = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(content, str):
            named[name] = content
        elif value is not None:
            raise ModelFormatError(
                f"{folder}: {name} is {reprlib.repr(value)}; it must be text, or have text as content"
            )
    return named


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """`chat_template.jinja` before the config's own; of several named templates, the one called default."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFormatError(f"{path} cannot be read: {_one_line(error)}") from error
    template = config.get("chat_template")
    if template is None:
        template = _read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(template, list) and all(isinstance(entry, dict) for entry in template):
        named = [entry.get("template", entry) for entry in template if entry.get("name") == "default"]
        template = named[-1] if named else None
    if template is not None and not isinstance(template, str):
        raise ModelFormatError(f"{folder}: the chat template is {type(template).__name__}; it must be text")
    return template


def _end_ids(config: Mapping[str, Any], path: Path) -> list[int]:
    """`eos_token_id`, which is one id, a list of ids, or absent."""
    value = config.get("eos_token_id")
    token_ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(not isinstance(token_id, int) or token_id < 0 for token_id in token_ids):
        raise ModelFormatError(f"{path}: eos_token_id is {value!r}; it must be a token id or a list of them")
    return token_ids


def _id_of(backend: tokenizers.Tokenizer, content: str, name: str, folder: Path) -> int:
    token_id: int | None = backend.token_to_id(content)
    if token_id is None:
        raise ModelFormatError(f"{folder}: the {name} {content!r} is not in the vocabulary")
    return token_id


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path} cannot be read: {_one_line(error)}") from error
    if not isinstance(content, dict):
        raise ModelFormatError(f"{path} holds a {type(content).__name__}; it must hold a JSON object")
    return content


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
