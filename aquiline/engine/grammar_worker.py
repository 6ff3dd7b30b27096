"""The program that reads and tries guides in a process of its own.

Lines on standard input, JSON each: first the `WorkerSetup`, then guides. On standard output a line for each guide, JSON
again; where it says how many characters of EBNF follow, they do. The process ends when its input does, whatever it is
doing, and when a guide takes more than it may.
"""

from __future__ import annotations

import json
import os
import queue
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, BinaryIO

import numpy

from aquiline.engine.grammar_text import XGRAMMAR_ERRORS, GuideText, grammar_text, not_understood
from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams

if TYPE_CHECKING:
    import xgrammar

NICENESS = 5
NUM_WALKS = 3
NUM_TOKENS = 96
EXIT_NO_MEMORY = 3
EXIT_FAULT = 4


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What is told once.

    Attributes:
        vocabulary: bytes of every token, as Latin-1.
        max_compile_seconds: processor time of a guide.
        max_compile_mb: memory of a guide, in MiB.
    """

    vocabulary: list[str]
    eos_token_ids: list[int]
    max_compile_seconds: float
    max_compile_mb: int


@dataclass(frozen=True, slots=True)
class Finding:
    """What is told of a guide.

    Attributes:
        refusal: why it is refused; empty when it is not.
        num_bytes: of its EBNF in UTF-8, which follows.
        num_states: see `GuideText`.
        num_other_characters: see `GuideText`.
        mask_ms: processor time of the slowest mask that was tried.
    """

    refusal: str = ""
    num_bytes: int = 0
    num_states: int = 0
    num_other_characters: int = 0
    mask_ms: float = 0.0


class GuideTrial:
    """Reads guides, compiles them, and writes some random texts of each."""

    def __init__(self, setup: WorkerSetup) -> None:
        import xgrammar

        self._setup = setup
        vocabulary = [token.encode("latin-1") for token in setup.vocabulary]
        self._info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, stop_token_ids=setup.eos_token_ids)
        self._vocab_size = len(vocabulary)

    def run(self, guided: GuidedParams) -> tuple[Finding, bytes]:
        """What there is to tell, and the EBNF."""
        with self._limited():
            try:
                guide = grammar_text(guided)
                mask_ms = self._mask_ms(guide)
            except InvalidParameterError as error:
                return Finding(refusal=str(error)), b""
            except XGRAMMAR_ERRORS as error:
                return Finding(refusal=str(not_understood(guided, error))), b""
        text = guide.text.encode()
        return Finding("", len(text), guide.num_states, guide.num_other_characters, mask_ms), text

    def _mask_ms(self, guide: GuideText) -> float:
        import xgrammar

        compiler = xgrammar.GrammarCompiler(
            self._info, max_threads=1, cache_enabled=False, enable_dynamic_compilation=guide.is_lazy
        )
        compiled = compiler.compile_grammar(guide.text)
        return max(_slowest_mask(compiled, self._vocab_size, seed) for seed in range(NUM_WALKS))

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Have the kernel end this process when it takes more from now on."""
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm", encoding="ascii") as pages:
            size = int(pages.read().split()[0]) * resource.getpagesize()
        most = size + self._setup.max_compile_mb * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
        signal.setitimer(signal.ITIMER_PROF, self._setup.max_compile_seconds)
        yield
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _slowest_mask(compiled: xgrammar.CompiledGrammar, vocab_size: int, seed: int) -> float:
    """Processor time of the slowest mask along a random text, in milliseconds; the first masks of a state count."""
    import xgrammar

    matcher = xgrammar.GrammarMatcher(compiled)
    choose = random.Random(seed)
    bits = numpy.zeros((1, -(-vocab_size // 32)), dtype=numpy.int32)
    slowest = 0.0
    for _ in range(NUM_TOKENS):
        started = time.thread_time()
        matcher.fill_next_token_bitmask(bits)
        slowest = max(slowest, time.thread_time() - started)
        allowed = numpy.flatnonzero(numpy.unpackbits(bits[0].view(numpy.uint8), bitorder="little"))
        if not len(allowed) or not matcher.accept_token(int(choose.choice(allowed))) or matcher.is_terminated():
            break
    return slowest * 1000.0


def _serve(tasks: queue.SimpleQueue[bytes], answers: BinaryIO) -> None:
    try:
        trial = GuideTrial(WorkerSetup(**json.loads(tasks.get())))
        # Only now: somebody waits for it to begin, and the work that may be endless comes behind.
        os.nice(NICENESS)
        while True:
            finding, text = trial.run(GuidedParams(**json.loads(tasks.get())))
            answers.write(json.dumps(asdict(finding)).encode() + b"\n" + text)
            answers.flush()
    except MemoryError:
        os._exit(EXIT_NO_MEMORY)
    finally:
        os._exit(EXIT_FAULT)


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_serve, args=(tasks, answers), daemon=True).start()
    for line in sys.stdin.buffer:
        tasks.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
