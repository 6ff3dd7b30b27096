"""Reads the tokenizer of a Hugging Face model folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from aquiline.errors import ModelFormatError
from aquiline.tokenizer_parts import TokenizerParts, add_token

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_hf_tokenizer(folder: Path) -> TokenizerParts:
    """Read `tokenizer.json` and what `tokenizer_config.json`, chat template and model configs add to it.

    Ids that end an answer are those named by tokenizer, generation and model config together.

    Raises:
        ModelFormatError: a file is missing, damaged, or contradicts another.
    """
    backend = _read_backend(folder)
    config = _read_json(folder / "tokenizer_config.json")
    named_tokens = _named_tokens(_read_json(folder / "special_tokens_map.json") | config)
    for token, token_id in _configured_tokens(config, named_tokens, backend):
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
            f"{folder} has no tokenizer.json; write one with transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        # The tokenizers package knows no exception more special than this one.
        if type(error) is Exception:
            raise ModelFormatError(f"{path} is damaged or not a tokenizer: {_one_line(error)}") from error
        raise
    backend.no_truncation()
    backend.no_padding()
    return backend


def _configured_tokens(
    config: Mapping[str, Any], named_tokens: Mapping[str, str], backend: tokenizers.Tokenizer
) -> Iterator[tuple[tokenizers.AddedToken, int]]:
    """Added tokens that only `tokenizer_config.json` knows, and named tokens not yet marked special."""
    known = backend.get_added_tokens_decoder()
    for text_id, fields in config.get("added_tokens_decoder", {}).items():
        if int(text_id) not in known:
            flags = {name: fields[name] for name in ("single_word", "lstrip", "rstrip", "normalized") if name in fields}
            yield tokenizers.AddedToken(fields["content"], special=fields.get("special", False), **flags), int(text_id)
    known = backend.get_added_tokens_decoder()
    special = {token.content for token in known.values() if token.special}
    for content in named_tokens.values():
        token_id = backend.token_to_id(content)
        if content not in special and token_id is not None:
            yield tokenizers.AddedToken(content, special=True, normalized=False), token_id


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Each is written as its text, or as an object whose `content` is the text."""
    named = {}
    for name in NAMED_TOKENS:
        value = config.get(name)
        content = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(content, str):
            named[name] = content
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
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
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
    except (OSError, ValueError) as error:
        raise ModelFormatError(f"{path} cannot be read: {_one_line(error)}") from error
    if not isinstance(content, dict):
        raise ModelFormatError(f"{path} holds a {type(content).__name__}; it must hold a JSON object")
    return content


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
