"""Grammars, compiled for one vocabulary, and where an output stands in one; the work is xgrammar's."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import TYPE_CHECKING

import numpy
from numpy.typing import NDArray

from aquiline.config import GrammarConfig
from aquiline.engine.grammar_rehearsal import rehearse
from aquiline.engine.regex_automaton import regex_rules
from aquiline.engine.regex_parser import parse_regex
from aquiline.engine.schema_reader import pattern_name, read_schema
from aquiline.errors import InternalError, InvalidParameterError
from aquiline.guided import GuidedParams

if TYPE_CHECKING:
    import xgrammar

VocabularyFactory = Callable[[], Sequence[bytes]]
MaskArray = NDArray[numpy.int32]

MAX_WHITESPACE = 64
MANY_RULES = 300
MANY_CHARACTERS = 2**18
MAX_KEPT = 256
MAX_CHAIN = 32
MAX_KEPT_BYTES = 2**28
ANY_OBJECT = '{"type": "object"}'


def mask_words(vocab_size: int) -> int:
    """32-bit words of a mask with a bit for every token."""
    return -(-vocab_size // 32)


def new_masks(num_masks: int, vocab_size: int) -> MaskArray:
    """Masks that allow nothing, [num_masks, mask_words(vocab_size)]."""
    return numpy.zeros((num_masks, mask_words(vocab_size)), dtype=numpy.int32)


class Matcher:
    """How far an output has come in its grammar; end-of-sequence ids are legal where it is complete, nowhere else.

    One exception: where the grammar asks for a character that no tokens can write, nothing but the end is legal.
    """

    def __init__(
        self, compiled: xgrammar.CompiledGrammar, eos_token_ids: frozenset[int], vocabulary: Sequence[bytes]
    ) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._eos_token_ids = eos_token_ids
        self._vocabulary = vocabulary
        vocab_size = compiled.tokenizer_info.vocab_size
        self._own_bits = new_masks(1, vocab_size)
        # xgrammar may set the bits behind the last token of the last word.
        self._last_word = (1 << vocab_size % 32) - 1 if vocab_size % 32 else -1
        self._ended_stuck = False

    @property
    def is_terminated(self) -> bool:
        """Whether an end-of-sequence id was accepted; there is no mask then, and nothing more is accepted."""
        return self._ended_stuck or self._matcher.is_terminated()

    def accept(self, token_id: int) -> bool:
        """Go on by one token; False, and nothing changes, where the grammar does not allow it."""
        if self.is_terminated:
            return False
        if self._matcher.accept_token(token_id):
            return True
        self._ended_stuck = token_id in self._eos_token_ids and self._is_stuck()
        return self._ended_stuck

    def allows(self, token_id: int) -> bool:
        """Whether a token may come next."""
        is_legal = self.accept(token_id)
        self.rollback(int(is_legal))
        return is_legal

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens."""
        if num_tokens and self._ended_stuck:
            self._ended_stuck = False
            num_tokens -= 1
        self._matcher.rollback(num_tokens)

    def fill(self, bits: MaskArray, row: int) -> None:
        """Write which tokens may come next.

        Args:
            bits: [num_masks, mask_words(vocab_size)], laid out as in `TokenMasks`.
        """
        self._matcher.fill_next_token_bitmask(bits, row)
        bits[row, -1] &= self._last_word
        if not bits[row].any():
            for token_id in self._eos_token_ids:
                # As a signed number, bit 31 is the lowest.
                bits[row, token_id // 32] |= 1 << token_id % 32 if token_id % 32 < 31 else -(2**31)

    def legal_chain(self) -> list[int]:
        """The legal tokens, shortest first, where the text of each begins that of the next; empty where texts part.

        Looks one token ahead and no further: the text that must come may be as long as the grammar likes, or endless.
        """
        self.fill(self._own_bits, 0)
        places = numpy.flatnonzero(self._own_bits[0])
        if len(places) > MAX_CHAIN:
            return []
        words = zip(places.tolist(), self._own_bits[0, places].tolist(), strict=True)
        legal = [place * 32 + bit for place, word in words for bit in range(32) if word >> bit & 1]
        if len(legal) > 1 and not self._eos_token_ids.isdisjoint(legal):
            return []
        legal.sort(key=lambda token_id: len(self._vocabulary[token_id]))
        texts = [self._vocabulary[token_id] for token_id in legal]
        return legal if all(map(bytes.startswith, texts[1:], texts)) else []

    def _is_stuck(self) -> bool:
        self._matcher.fill_next_token_bitmask(self._own_bits, 0)
        self._own_bits[0, -1] &= self._last_word
        return not self._own_bits.any()


class CompiledGrammar:
    """A grammar compiled for a vocabulary; requests share it."""

    def __init__(
        self, compiled: xgrammar.CompiledGrammar, eos_token_ids: frozenset[int], vocabulary: Sequence[bytes]
    ) -> None:
        self._compiled = compiled
        self._eos_token_ids = eos_token_ids
        self._vocabulary = vocabulary

    @property
    def num_bytes(self) -> int:
        """Memory it takes, about."""
        return self._compiled.memory_size_bytes

    def matcher(self) -> Matcher:
        """A matcher at the beginning of an output."""
        return Matcher(self._compiled, self._eos_token_ids, self._vocabulary)


class GrammarCompiler:
    """Compiles guides for one vocabulary and keeps them; any thread may ask.

    Args:
        new_vocabulary: called once, for the bytes of every token of the model, empty for those that stand for no text.
        vocab_size: tokens of the model.
        config: what a guide may cost.
    """

    def __init__(
        self,
        new_vocabulary: VocabularyFactory,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        config: GrammarConfig | None = None,
    ) -> None:
        self._new_vocabulary = new_vocabulary
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._config = config or GrammarConfig()
        self._lock = Lock()
        self._vocabulary: tuple[bytes, ...] = ()
        self._compilers: dict[bool, xgrammar.GrammarCompiler] = {}
        self._kept: dict[GuidedParams, Future[CompiledGrammar]] = {}

    def compile(self, guided: GuidedParams) -> CompiledGrammar:
        """The grammar of a guide; waits while it is compiled, here or for another caller.

        Raises:
            InvalidParameterError: a guide that is not understood, or a model that has no end-of-sequence id.
        """
        with self._lock:
            future = self._kept.pop(guided, None)
            is_new = future is None
            # Behind all others: what was asked for longest ago stands first, and goes first.
            future = self._kept[guided] = future or Future()
            if is_new:
                # Only then: how much memory a large grammar takes is slow to tell.
                self._drop_some()
        if is_new:
            try:
                future.set_result(self._compile(guided))
            except BaseException as error:
                with self._lock:
                    self._kept.pop(guided, None)
                future.set_exception(error)
                raise
        return future.result()

    def _compile(self, guided: GuidedParams) -> CompiledGrammar:
        if not self._eos_token_ids:
            raise InvalidParameterError("the model has no end-of-sequence id, so a guided output could not end")
        try:
            text = grammar_text(guided)
            has_many_rules = text.count("\n") >= MANY_RULES
            compiler = self._prepared(has_many_rules)
            if guided.grammar is not None or len(text) > MANY_CHARACTERS:
                rehearse(text, self._vocabulary, tuple(sorted(self._eos_token_ids)), self._config, has_many_rules)
            compiled = compiler.compile_grammar(text)
        except RuntimeError as error:
            reason = str(error).splitlines()[0].partition(": ")[2] or str(error)
            raise InvalidParameterError(f"the {guided.kind} of guided is not understood: {reason}") from error
        return CompiledGrammar(compiled, self._eos_token_ids, self._vocabulary)

    def _drop_some(self) -> None:
        """Forget grammars that nobody asked for lately; requests that follow one keep it."""
        ready = {guided: future.result() for guided, future in self._kept.items() if _is_ready(future)}
        num_bytes = sum(grammar.num_bytes for grammar in ready.values())
        for guided in [*ready][:-1]:
            if num_bytes <= MAX_KEPT_BYTES and len(self._kept) <= MAX_KEPT:
                return
            num_bytes -= ready[guided].num_bytes
            del self._kept[guided]

    def _prepared(self, has_many_rules: bool) -> xgrammar.GrammarCompiler:
        """A compiler; of many rules it computes the masks as they are needed, because few of them ever are."""
        import xgrammar

        with self._lock:
            if not self._vocabulary:
                listed = [*self._new_vocabulary()][: self._vocab_size]
                self._vocabulary = (*listed, *[b""] * (self._vocab_size - len(listed)))
            if has_many_rules not in self._compilers:
                info = xgrammar.TokenizerInfo(
                    [*self._vocabulary], xgrammar.VocabType.RAW, stop_token_ids=sorted(self._eos_token_ids)
                )
                self._compilers[has_many_rules] = xgrammar.GrammarCompiler(
                    info, max_threads=1, cache_enabled=False, enable_dynamic_compilation=has_many_rules
                )
            return self._compilers[has_many_rules]


def _is_ready(future: Future[CompiledGrammar]) -> bool:
    return future.done() and future.exception() is None


def grammar_text(guided: GuidedParams) -> str:
    """A guide as EBNF.

    Raises:
        InvalidParameterError: it asks for what no grammar can follow, with the place.
        RuntimeError: xgrammar does not understand it.
    """
    if guided.grammar is not None:
        return guided.grammar
    if guided.regex is not None:
        regex = parse_regex(guided.regex, "the regex")
        return "\n".join(("root ::= text0", *regex_rules(regex.whole(), "regex", "text")))
    if guided.choice is not None:
        return "root ::= " + " | ".join(map(_literal, guided.choice))
    return _json_grammar(guided)


def _json_grammar(guided: GuidedParams) -> str:
    import xgrammar

    read = read_schema(ANY_OBJECT if guided.json_object else guided.source)
    schema = json.dumps(read.schema, ensure_ascii=False)
    if guided.whitespace == "any":
        converted = xgrammar.Grammar.from_json_schema(schema, any_whitespace=True, max_whitespace_cnt=MAX_WHITESPACE)
    else:
        converted = xgrammar.Grammar.from_json_schema(schema, any_whitespace=False)
    text = str(converted)
    rules = []
    for number, regex in enumerate(read.texts):
        stands_for = f'Regex("{pattern_name(number)}", json_string=true)'
        if pattern_name(number) not in text:
            continue  # Nothing that the schema allows is written by it, such as a key of an object that has none.
        rules += regex_rules(regex, "JSON schema's pattern", f"text_{number}_")
        if stands_for not in text:
            raise InternalError(f"xgrammar's conversion of a JSON schema has no rule {stands_for}; its version is new")
        text = text.replace(stands_for, f"text_{number}_0")
    return "\n".join((text, *rules))


def _literal(text: str) -> str:
    """A text as EBNF writes it."""
    return '"' + "".join(map(_literal_character, text)) + '"'


def _literal_character(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08x}"
