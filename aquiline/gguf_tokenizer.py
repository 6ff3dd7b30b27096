"""Builds the tokenizer that a GGUF file describes in its `tokenizer.*` metadata.

The meaning of the keys is that of llama.cpp, which writes and reads them: `docs/gguf.md` of ggml for the keys, and the
vocabulary code of llama.cpp for pre-tokenizers and defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from aquiline.errors import ModelFormatError, UnsupportedFeatureError
from aquiline.gguf_file import read_gguf_directory
from aquiline.token_bytes import SENTENCEPIECE_SPACE
from aquiline.tokenizer_parts import TokenizerParts, add_token

Value = TypeVar("Value", bool, int, str)

GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizer:
    """How text is cut into words before merging.

    Attributes:
        patterns: each cuts every piece left by the one before into its matches and what lies between them.
        ignore_merges: a word that is a token itself is taken whole.
        add_bos: begin texts with the beginning-of-sequence token unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


LLAMA3 = PreTokenizer((LLAMA3_WORDS,), ignore_merges=True, add_bos=True)
PRE_TOKENIZERS = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": PreTokenizer((GPT2_WORDS,)),
    "smollm": PreTokenizer((r"\p{N}", GPT2_WORDS)),
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
}


class TokenType(IntEnum):
    """Values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """The token list of a file.

    Attributes:
        ids: id of every token text.
        types: type of every token, by id.
    """

    ids: Mapping[str, int]
    types: tuple[int, ...]


class Metadata:
    """The `tokenizer.*` keys of a GGUF file, read with the type they must have."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self._values = values

    def get(self, key: str, kind: type[Value]) -> Value | None:
        """The value of `tokenizer.<key>`; None when the file does not have it."""
        value = self._values.get(f"tokenizer.{key}")
        if value is None or (isinstance(value, kind) and isinstance(value, bool) == (kind is bool)):
            return value
        raise ModelFormatError(f"{self.path}: tokenizer.{key} is {value!r}; it must be of type {kind.__name__}")

    def get_list(self, key: str, kind: type[Any]) -> list[Any] | None:
        """The list under `tokenizer.<key>`; None when the file does not have it."""
        values = self._values.get(f"tokenizer.{key}")
        if values is None or (isinstance(values, list) and all(isinstance(value, kind) for value in values)):
            return values
        raise ModelFormatError(f"{self.path}: tokenizer.{key} must be a list of {kind.__name__}")

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, bool)
        return default if value is None else value


def read_gguf_tokenizer(path: Path) -> TokenizerParts:
    """Read the tokenizer of a GGUF file.

    Raises:
        ModelFormatError: the file is damaged, has no tokenizer, or contradicts itself.
        UnsupportedFeatureError: a tokenizer model or pre-tokenizer that is not offered here, by name.
    """
    metadata = read_metadata(path)
    vocabulary = _read_vocabulary(metadata)
    model = metadata.get("ggml.model", str)
    if model == "gpt2":
        pre_tokenizer = _pre_tokenizer(metadata)
        backend, add_bos = _byte_level(metadata, vocabulary, pre_tokenizer), pre_tokenizer.add_bos
        defaults: dict[str, int] = {}
    elif model == "llama":
        backend, add_bos = _sentencepiece(metadata, vocabulary), True
        defaults = {"bos": 1, "eos": 2, "unknown": 0}
    else:
        raise UnsupportedFeatureError(f"{path}: the tokenizer model is {model!r}; gpt2 and llama are supported")
    _add_tokens(metadata, vocabulary, backend)
    named_ids = _named_ids(metadata, len(vocabulary.ids), defaults)
    backend.post_processor = _post_processor(metadata, named_ids, add_bos)
    texts = list(vocabulary.ids)
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    return TokenizerParts(
        backend=backend,
        source=path,
        bos_token_id=named_ids.get("bos"),
        eos_token_ids=frozenset(named_ids[name] for name in ("eos", "eot", "eom") if name in named_ids),
        named_tokens={names[name]: texts[named_ids[name]] for name in names if name in named_ids},
        chat_template=metadata.get("chat_template", str),
    )


def read_metadata(path: Path) -> Metadata:
    """The tokenizer metadata of a GGUF file.

    Raises:
        ModelFormatError: the file is damaged, or no GGUF file at all.
    """
    return Metadata(path, read_gguf_directory(path).metadata)


def _read_vocabulary(metadata: Metadata) -> Vocabulary:
    texts = metadata.get_list("ggml.tokens", str)
    if not texts:
        raise ModelFormatError(f"{metadata.path} holds no tokenizer: tokenizer.ggml.tokens is missing or empty")
    types = metadata.get_list("ggml.token_type", int) or [TokenType.NORMAL] * len(texts)
    ids = {text: token_id for token_id, text in enumerate(texts)}
    if len(ids) != len(texts):
        twice = next(text for token_id, text in enumerate(texts) if ids[text] != token_id)
        raise ModelFormatError(f"{metadata.path}: tokenizer.ggml.tokens holds {twice!r} twice")
    if len(types) != len(texts):
        raise ModelFormatError(f"{metadata.path}: {len(texts)} tokens but {len(types)} token types")
    return Vocabulary(ids, tuple(types))


def _pre_tokenizer(metadata: Metadata) -> PreTokenizer:
    name = metadata.get("ggml.pre", str) or "default"
    if name not in PRE_TOKENIZERS:
        raise UnsupportedFeatureError(
            f"{metadata.path}: the pre-tokenizer is {name!r}; supported are {', '.join(PRE_TOKENIZERS)}"
        )
    return PRE_TOKENIZERS[name]


def _byte_level(metadata: Metadata, vocabulary: Vocabulary, pre_tokenizer: PreTokenizer) -> tokenizers.Tokenizer:
    """Byte-level BPE: words by pattern, then the listed merges, earliest in the list first."""
    lines = metadata.get_list("ggml.merges", str)
    if lines is None:
        raise ModelFormatError(f"{metadata.path}: tokenizer.ggml.merges is missing; the gpt2 tokenizer needs it")
    merges = []
    for line in lines:
        left, _, right = line.partition(" ")
        if not {left, right, left + right} <= vocabulary.ids.keys():
            raise ModelFormatError(f"{metadata.path}: the merge {line!r} names tokens that are not in the vocabulary")
        merges.append((left, right))
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=dict(vocabulary.ids), merges=merges, ignore_merges=pre_tokenizer.ignore_merges)
    )
    cuts = [pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated") for pattern in pre_tokenizer.patterns]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(metadata: Metadata, vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """SentencePiece BPE: of all neighbours that join to a token, those with the highest score join first."""
    scores = metadata.get_list("ggml.scores", float)
    if scores is None or len(scores) != len(vocabulary.ids):
        raise ModelFormatError(f"{metadata.path}: tokenizer.ggml.scores must hold one score per token")
    unknown_id = metadata.get("ggml.unknown_token_id", int) or 0
    texts = list(vocabulary.ids)
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=dict(vocabulary.ids),
            merges=_merges_by_score(vocabulary, scores),
            unk_token=texts[unknown_id] if unknown_id < len(texts) else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", SENTENCEPIECE_SPACE)
    steps = [decoders.Replace(SENTENCEPIECE_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.flag("ggml.add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SENTENCEPIECE_SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = spaces
    backend.decoder = decoders.Sequence(steps)
    return backend


def _merges_by_score(vocabulary: Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """Every way to join two tokens to a third, best score of the third first."""
    ids, ranked = vocabulary.ids, []
    for text, token_id in ids.items():
        if vocabulary.types[token_id] in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE):
            continue
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                ranked.append((-scores[token_id], ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(ranked)]


def _add_tokens(metadata: Metadata, vocabulary: Vocabulary, backend: tokenizers.Tokenizer) -> None:
    """Control and unknown tokens are special; user-defined ones are found in text but shown like any other."""
    for text, token_id in vocabulary.ids.items():
        kind = vocabulary.types[token_id]
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED) and text:
            # A user-defined run of spaces is written with the letters that the normalizer produces.
            is_normalized = kind == TokenType.USER_DEFINED and SENTENCEPIECE_SPACE in text
            token = tokenizers.AddedToken(text, special=kind != TokenType.USER_DEFINED, normalized=is_normalized)
            add_token(backend, token, token_id, metadata.path)


def _named_ids(metadata: Metadata, vocab_size: int, defaults: Mapping[str, int]) -> dict[str, int]:
    """Ids of the tokens with a role: `bos`, `eos`, `eot` (end of turn), `eom` (of message), `unknown`, `padding`."""
    named = {}
    for name in ("bos", "eos", "eot", "eom", "unknown", "padding"):
        token_id = metadata.get(f"ggml.{name}_token_id", int)
        if token_id is None:
            token_id = defaults.get(name)
        if token_id is None:
            continue
        if not 0 <= token_id < vocab_size:
            raise ModelFormatError(
                f"{metadata.path}: tokenizer.ggml.{name}_token_id is {token_id}; the file has ids 0 to {vocab_size - 1}"
            )
        named[name] = token_id
    return named


def _post_processor(metadata: Metadata, named_ids: Mapping[str, int], add_bos: bool) -> processors.TemplateProcessing:
    """Puts the beginning and end tokens around a text where the file asks for them."""
    wanted = {
        "bos": metadata.flag("ggml.add_bos_token", add_bos),
        "eos": metadata.flag("ggml.add_eos_token", False),
    }
    for name, is_wanted in wanted.items():
        if is_wanted and name not in named_ids:
            raise ModelFormatError(
                f"{metadata.path}: tokenizer.ggml.add_{name}_token is set but no {name}_token_id is given"
            )
    return processors.TemplateProcessing(
        single=[*(["bos"] if wanted["bos"] else []), "$A", *(["eos"] if wanted["eos"] else [])],
        special_tokens=[(name, named_ids[name]) for name, is_wanted in wanted.items() if is_wanted],
    )
