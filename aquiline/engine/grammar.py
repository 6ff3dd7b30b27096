"""Grammars, compiled for one vocabulary, and where an output stands in one; the work is xgrammar's."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy
from numpy.typing import NDArray

from aquiline.config import GrammarConfig
from aquiline.engine.grammar_process import GuideProcesses
from aquiline.engine.grammar_text import XGRAMMAR_ERRORS, GuideText, grammar_text, not_understood
from aquiline.engine.regex_automaton import SMALL, WorkLimitError
from aquiline.engine.shared_work import SharedWork
from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams
from aquiline.withdrawal import Withdrawal

if TYPE_CHECKING:
    import xgrammar

VocabularyFactory = Callable[[], Sequence[bytes]]
MaskArray = NDArray[numpy.int32]

# What is smaller than all of these is read within milliseconds and compiled within a second.
SMALL_SOURCE_CHARACTERS = 2**13
SMALL_TEXT_CHARACTERS = 2**15
SMALL_NUM_STATES = 256
NICENESS = 5
MAX_KEPT = 256
MAX_CHAIN = 32
MAX_KEPT_BYTES = 2**28


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
        if self.is_terminated or (not self._vocabulary[token_id] and token_id not in self._eos_token_ids):
            # xgrammar would say so on standard error.
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
        self._num_bytes = compiled.memory_size_bytes

    @property
    def num_bytes(self) -> int:
        """Memory it took at first, about."""
        return self._num_bytes

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
        self._processes: GuideProcesses | None = None
        self._compilers: dict[bool, xgrammar.GrammarCompiler] = {}
        self._kept: dict[GuidedParams, SharedWork[CompiledGrammar]] = {}
        # Those that somebody holds, kept or not.
        self._held: WeakValueDictionary[GuidedParams, CompiledGrammar] = WeakValueDictionary()

    def compile(self, guided: GuidedParams, withdrawal: Withdrawal | None = None) -> CompiledGrammar:
        """The grammar of a guide; waits while it is compiled, here or for another caller.

        As long as the caller holds it, asking again costs nothing.

        Args:
            withdrawal: of this call; when all callers have withdrawn theirs, the work for them ends. The first of
                several that ask for the same works for the others, and goes on while there are any.

        Raises:
            InvalidParameterError: a guide that is not understood or takes too much, or a model that has no
                end-of-sequence id.
            WithdrawnError: this call was withdrawn.
        """
        with self._lock:
            held = self._held.get(guided)
            if held is not None:
                return held
            kept = self._kept.pop(guided, None)
            # Behind all others: what was asked for longest ago stands first, and goes first.
            job = self._kept[guided] = kept or SharedWork(lambda job: self._forget(guided, job))
            job.join()
            if kept is None:
                self._drop_some()
        return job.wait(withdrawal or Withdrawal(), None if kept else lambda: self._work(guided, job))

    def _work(self, guided: GuidedParams, job: SharedWork[CompiledGrammar]) -> CompiledGrammar:
        try:
            compiled = self._compile(guided, job.withdrawal)
        except BaseException:
            self._forget(guided, job)
            raise
        with self._lock:
            self._held[guided] = compiled
        return compiled

    def _forget(self, guided: GuidedParams, job: SharedWork[CompiledGrammar]) -> None:
        with self._lock:
            if self._kept.get(guided) is job:
                del self._kept[guided]

    def prepare(self) -> None:
        """Load what every guide needs; otherwise the first one does."""
        if not self._eos_token_ids:
            return
        with self._lock:
            if not self._vocabulary:
                listed = [*self._new_vocabulary()][: self._vocab_size]
                self._vocabulary = (*listed, *[b""] * (self._vocab_size - len(listed)))
        self._compiler(is_lazy=False)

    def _compile(self, guided: GuidedParams, withdrawal: Withdrawal) -> CompiledGrammar:
        if not self._eos_token_ids:
            raise InvalidParameterError("the model has no end-of-sequence id, so a guided output could not end")
        self.prepare()
        guide = _small(guided) or self._processes_of_guides().read(guided, withdrawal)
        withdrawal.check()
        compiler = self._compiler(guide.is_lazy)
        try:
            compiled = _with_low_priority(lambda: compiler.compile_grammar(guide.text))
        except XGRAMMAR_ERRORS as error:
            raise not_understood(guided, error) from error
        return CompiledGrammar(compiled, self._eos_token_ids, self._vocabulary)

    def _drop_some(self) -> None:
        """Forget grammars that nobody asked for lately; requests that follow one keep it."""
        ready = {guided: grammar for guided, job in self._kept.items() if (grammar := job.result) is not None}
        # A source may be far larger than what it comes to.
        sizes = {guided: grammar.num_bytes + len(guided.source) for guided, grammar in ready.items()}
        num_bytes = sum(sizes.values())
        for guided in [*ready][:-1]:
            if num_bytes <= MAX_KEPT_BYTES and len(self._kept) <= MAX_KEPT:
                return
            num_bytes -= sizes[guided]
            del self._kept[guided]

    def _processes_of_guides(self) -> GuideProcesses:
        with self._lock:
            if self._processes is None:
                self._processes = GuideProcesses(self._vocabulary, self._eos_token_ids, self._config)
            return self._processes

    def _compiler(self, is_lazy: bool) -> xgrammar.GrammarCompiler:
        import xgrammar

        with self._lock:
            if is_lazy not in self._compilers:
                info = xgrammar.TokenizerInfo(
                    [*self._vocabulary], xgrammar.VocabType.RAW, stop_token_ids=sorted(self._eos_token_ids)
                )
                self._compilers[is_lazy] = xgrammar.GrammarCompiler(
                    info, max_threads=1, cache_enabled=False, enable_dynamic_compilation=is_lazy
                )
            return self._compilers[is_lazy]


def _small(guided: GuidedParams) -> GuideText | None:
    """The EBNF of a guide that certainly takes little; None: it may take more, in time, memory, or for each mask.

    Texts of EBNF may have many ways to be read, so none of them is.
    """
    if guided.grammar is not None or len(guided.source) > SMALL_SOURCE_CHARACTERS:
        return None
    try:
        guide = grammar_text(guided, SMALL)
    except WorkLimitError:
        return None
    is_small = len(guide.text) <= SMALL_TEXT_CHARACTERS and guide.num_states <= SMALL_NUM_STATES
    return guide if is_small else None


def _with_low_priority(compile_it: Callable[[], xgrammar.CompiledGrammar]) -> xgrammar.CompiledGrammar:
    """Compile on a thread that leaves the processors to others; xgrammar releases the interpreter meanwhile."""
    with ThreadPoolExecutor(1, "compile-grammar", _lower_priority) as thread:
        return thread.submit(compile_it).result()


def _lower_priority() -> None:
    if sys.platform == "linux":
        # Only there a thread has a priority of its own.
        os.setpriority(os.PRIO_PROCESS, 0, min(os.getpriority(os.PRIO_PROCESS, 0) + NICENESS, 19))
