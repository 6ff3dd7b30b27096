"""Tiny engines whose tokens can write JSON, and guides for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from aquiline.engine.engine import Engine, EngineModels
from aquiline.engine.grammar import GrammarCompiler
from aquiline.guided import GuidedParams
from aquiline.models.eagle import EagleModel
from aquiline.models.llama import LlamaModel
from aquiline.request import SamplingParams
from aquiline.token_bytes import IncrementalDecoder
from tests.engine.workloads import Job
from tests.tiny import TinySettings, tiny_draft, tiny_eagle_config, tiny_llama_config, tiny_target

# Every printable ASCII character, pieces that cut across the parts of JSON, and bytes of a character.
PIECES = (
    *map(chr, range(0x20, 0x7F)),
    *('{"', '": ', '", "', '"]', '"}', "}}", "], ", "true", "false", "null", "12", "ab", "na", "me", "é", "日"),
    *("\xc3", "\xa9"),
)
BYTE_PIECES = {"\xc3": b"\xc3", "\xa9": b"\xa9"}
VOCABULARY = (*(BYTE_PIECES.get(piece, piece.encode()) for piece in PIECES), b"", b"")
EOS = len(VOCABULARY) - 1
VOCAB = len(VOCABULARY)

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bc", 3, None]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
GUIDES = [
    GuidedParams(json_schema=SCHEMA),
    GuidedParams(regex=r"[ab]{2,6}(12|\.)x?"),
    GuidedParams(choice=("abba", "ab", "name", "nab")),
    GuidedParams(grammar='root ::= "a" root "b" | "c" [0-9]'),
]
JOBS = [
    Job((3, 1, index), SamplingParams(temperature=temperature, seed=index, max_tokens=120, guided=guide))
    for index, guide in enumerate(GUIDES)
    for temperature in (0.0, 1.0)
]


def new_decoder(prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> IncrementalDecoder:
    """Decoder of the vocabulary; its special tokens have no text."""
    return IncrementalDecoder(VOCABULARY.__getitem__, prompt_token_ids)


@cache
def guided_target() -> LlamaModel:
    """A random target over the vocabulary."""
    config = replace(tiny_llama_config(), vocab_size=VOCAB, eos_token_ids=(EOS,))
    return tiny_target(config, aux_layer_ids=(0, 1, 3))


@cache
def guided_draft(draft_vocab_size: int) -> EagleModel:
    """A random draft over a part of the vocabulary."""
    target = guided_target()
    return tiny_draft(target, tiny_eagle_config(target.config, draft_vocab_size=draft_vocab_size))


@cache
def shared_compiler() -> GrammarCompiler:
    """A compiler that has one process for all tests."""
    return GrammarCompiler(lambda: VOCABULARY, VOCAB, frozenset((EOS,)))


def share_compiler(engine: Engine) -> Engine:
    """Have an engine over the vocabulary use it."""
    engine.grammars = engine.guidance._compiler = shared_compiler()
    return engine


def guided_engine(settings: TinySettings, draft_vocab_size: int = VOCAB - 10) -> Engine:
    """An engine that can be guided."""
    models = EngineModels(
        guided_target(), guided_draft(draft_vocab_size), new_decoder, frozenset((EOS,)), lambda: VOCABULARY
    )
    return share_compiler(Engine(models, settings.engine_config()))
