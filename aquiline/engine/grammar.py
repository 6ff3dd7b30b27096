"""Grammars, compiled for one vocabulary, and where an output stands in one; the work is xgrammar's."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import TYPE_CHECKING

from torch import Tensor

from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams

if TYPE_CHECKING:
    import xgrammar

VocabularyFactory = Callable[[], Sequence[bytes]]

MAX_WHITESPACE = 64


def mask_words(vocab_size: int) -> int:
    """32-bit words of a mask with a bit for every token."""
    return -(-vocab_size // 32)


class Matcher:
    """How far an output has come in its grammar; end-of-sequence ids are legal where it is complete, nowhere else."""

    def __init__(self, compiled: xgrammar.CompiledGrammar) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled)

    @property
    def is_terminated(self) -> bool:
        """Whether an end-of-sequence id was accepted; there is no mask then, and nothing more is accepted."""
        return self._matcher.is_terminated()

    def accept(self, token_id: int) -> bool:
        """Go on by one token; False, and nothing changes, where the grammar does not allow it."""
        return not self.is_terminated and self._matcher.accept_token(token_id)

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens."""
        self._matcher.rollback(num_tokens)

    def fill(self, bits: Tensor, row: int) -> None:
        """Write which tokens may come next.

        Args:
            bits: [num_masks, mask_words(vocab_size)] int32 on the CPU, laid out as in `TokenMasks`.
        """
        self._matcher.fill_next_token_bitmask(bits, row)


class CompiledGrammar:
    """A grammar compiled for a vocabulary; requests share it."""

    def __init__(self, compiled: xgrammar.CompiledGrammar) -> None:
        self._compiled = compiled

    @property
    def num_bytes(self) -> int:
        """Memory it takes, about."""
        return self._compiled.memory_size_bytes

    def matcher(self) -> Matcher:
        """A matcher at the beginning of an output."""
        return Matcher(self._compiled)


class GrammarCompiler:
    """Compiles guides for one vocabulary and keeps them; any thread may ask.

    Args:
        new_vocabulary: called once, for the bytes of every token of the model, empty for those that stand for no text.
        vocab_size: tokens of the model.
    """

    def __init__(self, new_vocabulary: VocabularyFactory, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._new_vocabulary = new_vocabulary
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._lock = Lock()
        self._compiler: xgrammar.GrammarCompiler | None = None
        self._kept: dict[GuidedParams, Future[CompiledGrammar]] = {}

    def compile(self, guided: GuidedParams) -> CompiledGrammar:
        """The grammar of a guide; waits while it is compiled, here or for another caller.

        Raises:
            InvalidParameterError: a guide that is not understood, or a model that has no end-of-sequence id.
        """
        with self._lock:
            future = self._kept.get(guided)
            is_new = future is None
            if future is None:
                future = self._kept[guided] = Future()
        if is_new:
            try:
                future.set_result(self._compile(guided))
            except BaseException as error:
                with self._lock:
                    del self._kept[guided]
                future.set_exception(error)
                raise
        return future.result()

    def _compile(self, guided: GuidedParams) -> CompiledGrammar:
        if not self._eos_token_ids:
            raise InvalidParameterError("the model has no end-of-sequence id, so a guided output could not end")
        try:
            compiled = compile_guided(self._prepared(), guided)
        except RuntimeError as error:
            reason = str(error).splitlines()[0].partition(": ")[2] or str(error)
            raise InvalidParameterError(f"the {guided.kind} of guided is not understood: {reason}") from error
        return CompiledGrammar(compiled)

    def _prepared(self) -> xgrammar.GrammarCompiler:
        import xgrammar

        with self._lock:
            if self._compiler is None:
                vocabulary = [*self._new_vocabulary()][: self._vocab_size]
                info = xgrammar.TokenizerInfo(
                    vocabulary,
                    xgrammar.VocabType.RAW,
                    vocab_size=self._vocab_size,
                    stop_token_ids=sorted(self._eos_token_ids),
                )
                self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
            return self._compiler


def compile_guided(compiler: xgrammar.GrammarCompiler, guided: GuidedParams) -> xgrammar.CompiledGrammar:
    """Compile one guide.

    Raises:
        RuntimeError: xgrammar does not understand it.
    """
    if guided.kind == "regex":
        return compiler.compile_regex(guided.source)
    if guided.kind == "grammar":
        return compiler.compile_grammar(guided.source)
    if guided.choice is not None:
        return compiler.compile_grammar("root ::= " + " | ".join(map(_literal, guided.choice)))
    schema = guided.source if guided.kind == "json_schema" else json.dumps({"type": "object"})
    if guided.whitespace == "any":
        return compiler.compile_json_schema(schema, any_whitespace=True, max_whitespace_cnt=MAX_WHITESPACE)
    return compiler.compile_json_schema(schema, any_whitespace=False)


def _literal(text: str) -> str:
    """A text as EBNF writes it."""
    return '"' + "".join(map(_literal_character, text)) + '"'


def _literal_character(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08x}"
