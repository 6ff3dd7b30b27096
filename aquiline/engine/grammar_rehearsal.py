"""Compile a grammar in a process of its own, which may take no more time and memory than allowed.

A grammar can ask for more work than any machine has, and a compilation cannot be interrupted. What compiles here in
time, and answers some masks, compiles in the engine as well.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
import time
from functools import lru_cache

import numpy

from aquiline.config import GrammarConfig
from aquiline.errors import InvalidParameterError

STARTUP_SECONDS = 120.0
NUM_WALKS = 3
NUM_TOKENS = 96
MAX_ERROR_CHARACTERS = 300
EXIT_NOT_UNDERSTOOD = 3


@lru_cache(maxsize=64)
def rehearse(
    text: str,
    vocabulary: tuple[bytes, ...],
    eos_token_ids: tuple[int, ...],
    config: GrammarConfig,
    is_lazy: bool = False,
) -> None:
    """Compile a grammar elsewhere, and write some random texts of it; what went well once is not done again.

    Args:
        text: EBNF.
        is_lazy: masks are computed when they are needed.

    Raises:
        InvalidParameterError: it is not understood, or takes more than the settings allow.
    """
    task = {
        "text": text,
        "vocabulary": [token.decode("latin-1") for token in vocabulary],
        "eos_token_ids": list(eos_token_ids),
        "is_lazy": is_lazy,
        "max_compile_seconds": config.max_compile_seconds,
        "max_compile_mb": config.max_compile_mb,
    }
    command = [sys.executable, "-m", "aquiline.engine.grammar_rehearsal"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(task).encode(),
            capture_output=True,
            timeout=STARTUP_SECONDS + 4 * config.max_compile_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InvalidParameterError(_too_slow(config)) from None
    if done.returncode == 0:
        _judge(json.loads(done.stdout), config)
    elif done.returncode == EXIT_NOT_UNDERSTOOD:
        reason = done.stdout.decode(errors="replace")[:MAX_ERROR_CHARACTERS]
        raise InvalidParameterError(f"the grammar of guided is not understood: {reason}")
    elif done.returncode == -signal.SIGXCPU:
        raise InvalidParameterError(_too_slow(config))
    else:
        raise InvalidParameterError(
            f"the grammar takes more than {config.max_compile_mb} MiB to compile, or ends the compiler; make it"
            " smaller, or raise max_compile_mb"
        )


def _too_slow(config: GrammarConfig) -> str:
    return (
        f"the grammar takes more than {config.max_compile_seconds:g} s to compile; make it smaller, or raise"
        " max_compile_seconds"
    )


def _judge(figures: dict[str, float], config: GrammarConfig) -> None:
    if figures["mask_ms"] > config.max_mask_ms:
        raise InvalidParameterError(
            f"the grammar takes {figures['mask_ms']:.0f} ms to tell what may come next, more than"
            f" {config.max_mask_ms:g}; give its texts fewer ways to be read, or raise max_mask_ms"
        )


def main() -> int:
    """The other process: reads a task from standard input, writes figures or a reason to standard output."""
    import xgrammar

    task = json.load(sys.stdin)
    vocabulary = [token.encode("latin-1") for token in task["vocabulary"]]
    info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, stop_token_ids=task["eos_token_ids"])
    compiler = xgrammar.GrammarCompiler(
        info, max_threads=1, cache_enabled=False, enable_dynamic_compilation=task["is_lazy"]
    )
    _limit(task["max_compile_seconds"], task["max_compile_mb"])
    try:
        compiled = compiler.compile_grammar(task["text"])
    except RuntimeError as error:
        sys.stdout.write(" ".join(str(error).split()).partition(": ")[2] or str(error))
        return EXIT_NOT_UNDERSTOOD
    mask_ms = max(_slowest_mask(compiled, len(vocabulary), seed) for seed in range(NUM_WALKS))
    sys.stdout.write(json.dumps({"mask_ms": mask_ms}))
    return 0


def _limit(seconds: float, megabytes: int) -> None:
    """Let the kernel end this process when it takes more from now on."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    most = int(spent.ru_utime + spent.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))
    with open("/proc/self/statm", encoding="ascii") as pages:
        size = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + megabytes * 2**20,) * 2)


def _slowest_mask(compiled: object, vocab_size: int, seed: int) -> float:
    """Processor time of the slowest mask along a random text, in milliseconds; the first masks of a state count."""
    import xgrammar

    matcher = xgrammar.GrammarMatcher(compiled)  # type: ignore[arg-type]
    choose = random.Random(seed)
    bits = numpy.zeros((1, -(-vocab_size // 32)), dtype=numpy.int32)
    slowest = 0.0
    for _ in range(NUM_TOKENS):
        # Of the thread: the clock of a process whose time is limited moves in ticks.
        started = time.thread_time()
        matcher.fill_next_token_bitmask(bits)
        slowest = max(slowest, time.thread_time() - started)
        allowed = numpy.flatnonzero(numpy.unpackbits(bits[0].view(numpy.uint8), bitorder="little"))
        if not len(allowed) or not matcher.accept_token(int(choose.choice(allowed))) or matcher.is_terminated():
            break
    return slowest * 1000.0


if __name__ == "__main__":
    sys.exit(main())
