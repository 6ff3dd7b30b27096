"""What a tokenizer is made of, wherever it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tokenizers

from aquiline.errors import ModelFormatError


@dataclass(frozen=True)
class TokenizerParts:
    """The common result of reading a Hugging Face folder or a GGUF file.

    Attributes:
        backend: splits text into ids, added and special tokens included; without truncation or padding.
        source: where it was read, for messages.
        eos_token_ids: ids that end an answer.
        named_tokens: `bos_token`, `eos_token` and the like by name, as chat templates use them.
        chat_template: jinja2 source; None when the model has none.
    """

    backend: tokenizers.Tokenizer
    source: Path
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    named_tokens: Mapping[str, str]
    chat_template: str | None


def add_token(backend: tokenizers.Tokenizer, token: tokenizers.AddedToken, token_id: int, source: Path) -> None:
    """Have `backend` find `token` anywhere in text, under the id it has in the model.

    Raises:
        ModelFormatError: another token has that id, or the token another id.
    """
    backend.add_special_tokens([token]) if token.special else backend.add_tokens([token])
    found = backend.token_to_id(token.content)
    if found != token_id:
        raise ModelFormatError(f"{source}: the token {token.content!r} should have id {token_id} but gets {found}")
