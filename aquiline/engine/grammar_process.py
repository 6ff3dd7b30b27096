"""Guides are read and tried in processes of their own, which may take no more time and memory than allowed.

A guide can ask for more work than any machine has; neither reading nor compiling can be interrupted, and reading would
hold up every thread of this process. A process begins when the first guide comes that needs one, serves one guide after
the other, ends with this process, and is replaced when a guide has ended it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Condition, Lock, Timer
from typing import IO, NoReturn, cast

from aquiline.config import GrammarConfig
from aquiline.engine.grammar_text import GuideText
from aquiline.engine.grammar_worker import EXIT_NO_MEMORY, Finding, WorkerSetup
from aquiline.errors import InternalError, InvalidParameterError
from aquiline.guided import GuidedParams
from aquiline.withdrawal import Withdrawal, WithdrawnError

NUM_PROCESSES = 2
STARTUP_SECONDS = 120.0
# Processor time is what is limited; a busy machine may need longer for it.
ELAPSED_PER_SECOND = 10.0
SECONDS_TO_END = 5.0
MAX_REFUSALS = 32


class GuideProcesses:
    """Reads guides elsewhere, at most `NUM_PROCESSES` at once; any thread may ask.

    Args:
        vocabulary: bytes of every token.
        config: what a guide may take.
    """

    def __init__(self, vocabulary: Sequence[bytes], eos_token_ids: frozenset[int], config: GrammarConfig) -> None:
        self._config = config
        tokens = [token.decode("latin-1") for token in vocabulary]
        self._setup = WorkerSetup(tokens, sorted(eos_token_ids), config.max_compile_seconds, config.max_compile_mb)
        self._places = Condition()
        self._num_places = NUM_PROCESSES
        self._lock = Lock()
        self._idle: list[_Process] = []
        self._refusals: dict[GuidedParams, str] = {}
        weakref.finalize(self, _end_all, self._idle)

    def read(self, guided: GuidedParams, withdrawal: Withdrawal) -> GuideText:
        """A guide as EBNF that compiles within the limits.

        Args:
            withdrawal: of the guide: it no longer waits for a process then, and one that reads it is ended.

        Raises:
            InvalidParameterError: it does not, or is not understood.
            WithdrawnError: it was withdrawn.
        """
        refusal = self._refusals.get(guided)
        if refusal is not None:
            raise InvalidParameterError(refusal)
        with self._place(withdrawal):
            answer = self._ask(self._process(), guided, withdrawal)
            # A process may have been ended from outside, and not by the guide.
            answer = answer or self._ask(_Process(self._setup), guided, withdrawal)
        if answer is None:
            self._refuse(guided, _too_large(guided, self._config))
        return self._judged(guided, answer)

    @contextmanager
    def _place(self, withdrawal: Withdrawal) -> Iterator[None]:
        """Wait until a process may work for this guide."""
        with withdrawal.calling(self._wake), self._places:
            self._places.wait_for(lambda: self._num_places or withdrawal.is_withdrawn)
            withdrawal.check()
            self._num_places -= 1
        try:
            yield
        finally:
            with self._places:
                self._num_places += 1
                self._places.notify_all()

    def _wake(self) -> None:
        with self._places:
            self._places.notify_all()

    def _ask(self, process: _Process, guided: GuidedParams, withdrawal: Withdrawal) -> _Answer | None:
        """What a process finds; None where it was killed by somebody else."""
        is_over = Timer(STARTUP_SECONDS + ELAPSED_PER_SECOND * self._config.max_compile_seconds, process.stop)
        is_over.daemon = True
        is_over.start()
        try:
            with withdrawal.calling(process.stop):
                answer = process.ask(guided)
        except BaseException:
            process.end()
            raise
        finally:
            is_over.cancel()
        if answer is not None:
            # Where it was told to end meanwhile, it comes too late for that, and not for the answer.
            self._put_back(process if not process.was_stopped else _Process(self._setup))
            return answer
        code = process.ended()
        if withdrawal.is_withdrawn:
            # Whoever comes next shall not wait for one to begin.
            self._put_back(_Process(self._setup))
            raise WithdrawnError
        if process.was_stopped:
            # How much time has passed says more of the machine than of the guide: it may be asked for again.
            raise InvalidParameterError(_too_slow(guided, self._config))
        if code == -signal.SIGKILL:
            return None
        self._refuse(guided, _why(code, guided, self._config))

    def _put_back(self, process: _Process) -> None:
        with self._lock:
            self._idle.append(process)

    def _process(self) -> _Process:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.is_alive:
                    return process
                process.end()
        return _Process(self._setup)

    def _judged(self, guided: GuidedParams, answer: _Answer) -> GuideText:
        finding = answer.finding
        if finding.refusal:
            self._refuse(guided, finding.refusal)
        if finding.mask_ms > self._config.max_mask_ms:
            self._refuse(
                guided,
                f"the {guided.kind} of guided takes {finding.mask_ms:.0f} ms to tell what may come next, more than"
                f" {self._config.max_mask_ms:g}; give its texts fewer ways to be read, or raise max_mask_ms",
            )
        return GuideText(answer.text, finding.num_states, finding.num_other_characters)

    def _refuse(self, guided: GuidedParams, reason: str) -> NoReturn:
        with self._lock:
            self._refusals[guided] = reason
            if len(self._refusals) > MAX_REFUSALS:
                del self._refusals[next(iter(self._refusals))]
        raise InvalidParameterError(reason)


@dataclass(frozen=True, slots=True)
class _Answer:
    finding: Finding
    text: str


class _Process:
    """One process, which one thread uses at a time.

    Attributes:
        was_stopped: it was told to end because too much time had passed, or nobody waits for its answer.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "aquiline.engine.grammar_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Address space is what is limited, and every arena of malloc reserves 128 MiB that nothing may ever use.
            env={**os.environ, "MALLOC_ARENA_MAX": "1", "PYTHONPATH": os.pathsep.join(_packages())},
        )
        self._setup: WorkerSetup | None = setup
        self.was_stopped = False

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, guided: GuidedParams) -> _Answer | None:
        """What it finds; None when it ends over that."""
        tasks, answers = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
        try:
            if self._setup is not None:
                tasks.write(json.dumps(asdict(self._setup)).encode() + b"\n")
                self._setup = None
            tasks.write(json.dumps(asdict(guided)).encode() + b"\n")
            tasks.flush()
        except BrokenPipeError:
            return None
        line = answers.readline()
        if not line.endswith(b"\n"):
            return None
        finding = Finding(**json.loads(line))
        text = answers.read(finding.num_bytes)
        return _Answer(finding, text.decode()) if len(text) == finding.num_bytes else None

    def stop(self) -> None:
        """Have it end, whatever it is doing."""
        self.was_stopped = True
        self._process.kill()

    def ended(self) -> int:
        """How it ended, as `subprocess` tells it, once it has closed its output."""
        try:
            self._process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self.end()

    def end(self) -> int:
        """End it, and tell how it ended."""
        if self._process.poll() is None:
            self._process.kill()
        code = self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            try:
                cast(IO[bytes], stream).close()
            except BrokenPipeError:
                continue  # What was written to it last has gone with it.
        return code


def _packages() -> list[str]:
    """Where Python looks for packages, first of all for this one: it may have been found through the current folder."""
    return [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]


def _why(code: int, guided: GuidedParams, config: GrammarConfig) -> str:
    """Why a guide is refused that has ended its process."""
    if code == -signal.SIGPROF:
        return _too_slow(guided, config)
    if code in (EXIT_NO_MEMORY, -signal.SIGABRT, -signal.SIGSEGV):
        return _too_large(guided, config)
    raise InternalError(f"the process that compiles guides ended with status {code}")


def _too_large(guided: GuidedParams, config: GrammarConfig) -> str:
    return (
        f"the {guided.kind} of guided takes more than {config.max_compile_mb} MiB to compile, or ends the compiler;"
        " make it smaller, or raise max_compile_mb"
    )


def _too_slow(guided: GuidedParams, config: GrammarConfig) -> str:
    return (
        f"the {guided.kind} of guided takes more than {config.max_compile_seconds:g} s to compile; make it smaller, or"
        " raise max_compile_seconds"
    )


def _end_all(processes: list[_Process]) -> None:
    while processes:
        processes.pop().end()
