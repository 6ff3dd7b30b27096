"""The bytes that single tokens stand for, and how they become text one token at a time.

Llama models write text in two ways. Byte-level BPE (Llama 3, SmolLM) spells every byte as one printable character:
`Ġ` is a space. SentencePiece (Llama 1 and 2) writes `▁` for a space and `<0xE2>` for a byte without a token. In both,
the text of a list of tokens is its bytes joined and decoded as UTF-8, which is what makes text streamable.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import tokenizers

from aquiline.errors import UnsupportedFeatureError

MAX_INCOMPLETE_BYTES = 3
REPLACEMENT = "\ufffd"
SENTENCEPIECE_SPACE = "\u2581"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Looks up the bytes of a token.

    Attributes:
        drops_first_space: a space at the very beginning of a text is not part of it (SentencePiece's dummy prefix).

    Raises:
        UnsupportedFeatureError: the tokenizer joins tokens in another way.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._known: dict[int, bytes] = {}
        steps = _decoder_steps(backend)
        kinds = [step["type"] for step in steps]
        self._is_byte_level = kinds == ["ByteLevel"]
        self._has_byte_tokens = "ByteFallback" in kinds
        self.drops_first_space = any(_drops_first_space(step) for step in steps)
        if not self._is_byte_level and not _is_sentencepiece(steps):
            named = " + ".join(kinds) or "none"
            raise UnsupportedFeatureError(
                f"the tokenizer's decoder is {named}; byte-level BPE and SentencePiece BPE are supported"
            )

    def __call__(self, token_id: int) -> bytes:
        """The bytes of one token, special or not; empty for an id without a token."""
        known = self._known.get(token_id)
        if known is None:
            text = self._backend.id_to_token(token_id) if token_id >= 0 else None
            known = self._known[token_id] = b"" if text is None else self._spell(text)
        return known

    def _spell(self, text: str) -> bytes:
        if self._is_byte_level:
            byte_values = [BYTE_OF_CHARACTER.get(character) for character in text]
            return text.encode() if None in byte_values else bytes(value for value in byte_values if value is not None)
        match = BYTE_TOKEN.fullmatch(text) if self._has_byte_tokens else None
        return bytes([int(match[1], 16)]) if match else text.replace(SENTENCEPIECE_SPACE, " ").encode()


class IncrementalDecoder:
    """Turns tokens into text one at a time, as the continuation of a prompt.

    The pieces returned by `push` and `flush`, joined, are the decoded bytes of all pushed tokens: no character is
    returned before its last byte has come, and none twice. The work per token depends on that token's bytes alone.

    A character that the prompt began and the output completes belongs to the output. One that the prompt began
    and the output breaks does not: its replacement character stands in the prompt's own text.

    Args:
        token_bytes: the bytes a token adds to the text, empty for tokens that are left out.
        prompt_token_ids: what comes before the output; only its last few bytes are looked at.
        drops_first_space: the very first character of prompt and output together is dropped when it is a space
            (SentencePiece writes a space before the first word).
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], prompt_token_ids: Sequence[int], drops_first_space: bool = False
    ) -> None:
        self._token_bytes = token_bytes
        tail = b""
        for token_id in reversed(prompt_token_ids):
            tail = token_bytes(token_id) + tail
            if len(tail) >= MAX_INCOMPLETE_BYTES:
                break
        self._drops_first_space = drops_first_space and not tail
        self._pending = _incomplete_character(tail)
        self._is_prompt_pending = bool(self._pending)

    def push(self, token_id: int) -> str:
        """Text that `token_id` completes; empty while a character lacks bytes."""
        return self._take(self._token_bytes(token_id), final=False)

    def flush(self) -> str:
        """What is left at the end: a replacement character for bytes that never became one."""
        return self._take(b"", final=True)

    def _take(self, new_bytes: bytes, final: bool) -> str:
        if self._drops_first_space and new_bytes:
            new_bytes = new_bytes.removeprefix(b" ")
            self._drops_first_space = False
        unread = self._pending + new_bytes
        text, num_used = codecs.utf_8_decode(unread, "replace", final)
        self._pending = unread[num_used:]
        if self._is_prompt_pending and text:
            self._is_prompt_pending = False
            if text[0] == REPLACEMENT and not unread.startswith(REPLACEMENT.encode()):
                text = text[1:]
        return text


def _incomplete_character(encoded: bytes) -> bytes:
    """The unfinished UTF-8 sequence at the end of `encoded`, which may begin in the middle of another one."""
    return encoded[codecs.utf_8_decode(encoded, "replace", False)[1] :]


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    decoder = json.loads(backend.decoder.__getstate__())
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _is_sentencepiece(steps: list[dict[str, Any]]) -> bool:
    """Whether the steps are `▁` to space, then optionally byte tokens, joining, and the first space."""
    spaces = {"type": "Replace", "pattern": {"String": SENTENCEPIECE_SPACE}, "content": " "}
    allowed = (spaces, {"type": "ByteFallback"}, {"type": "Fuse"})
    return spaces in steps and all(step in allowed or _drops_first_space(step) for step in steps)


def _drops_first_space(step: dict[str, Any]) -> bool:
    return step == {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the others for U+0100, U+0101, ... in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    characters = {chr(value): value for value in printable}
    return characters | {chr(0x100 + index): value for index, value in enumerate(others)}


BYTE_OF_CHARACTER = _byte_of_character()
