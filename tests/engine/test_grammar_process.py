"""Guides in a process of their own: what ends it, what it leaves alone, and when there is none."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest

from aquiline.config import GrammarConfig
from aquiline.engine import grammar
from aquiline.engine.grammar import CompiledGrammar, GrammarCompiler, new_masks
from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams
from aquiline.withdrawal import Withdrawal, WithdrawnError
from tests.engine.guided_work import EOS, GUIDES, SCHEMA, VOCAB, VOCABULARY
from tests.engine.test_json_schemas import SCHEMAS

EBNF = GuidedParams(grammar='root ::= "a" root "b" | "c" [0-9]')
HUGE = GuidedParams(
    grammar="root ::= " + " | ".join(f'"{n:06d}" [a-z]{{1,60}} [^{chr(97 + n % 26)}]{{1,60}}' for n in range(20_000))
)


def new_compiler(**limits: float) -> GrammarCompiler:
    return GrammarCompiler(lambda: VOCABULARY, VOCAB, frozenset((EOS,)), GrammarConfig(**limits))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    """One with a process and short limits."""
    yield new_compiler(max_compile_seconds=1.0, max_compile_mb=1024)


def process_id(compiler: GrammarCompiler) -> int:
    assert compiler._processes is not None
    (process,) = compiler._processes._idle
    return process._process.pid


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as state:
            return state.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def processor_seconds(pid: int) -> float:
    """Processor time that a process has taken; that of its beginning is less than half a second."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as state:
        fields = state.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def started_processes() -> Iterator[list[int]]:
    """Ids of the processes that begin meanwhile."""
    pids: list[int] = []
    begin = subprocess.Popen.__init__

    def watched(self: subprocess.Popen[bytes], *args: Any, **settings: Any) -> None:
        begin(self, *args, **settings)
        pids.append(self.pid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", watched)
        yield pids


def assert_ends(pid: int) -> None:
    deadline = time.monotonic() + 60
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(pid)


def masks_along(compiled: CompiledGrammar, seed: int) -> list[list[int]]:
    matcher, choose, found = compiled.matcher(), random.Random(seed), []
    for _ in range(30):
        if matcher.is_terminated:
            break
        bits = new_masks(1, VOCAB)
        matcher.fill(bits, 0)
        found.append(bits[0].tolist())
        legal = numpy.flatnonzero(numpy.unpackbits(bits[0].view(numpy.uint8), bitorder="little"))
        assert matcher.accept(int(choose.choice(legal)))
    return found


def test_small_guides_need_no_process() -> None:
    own = new_compiler()
    small = [guided for guided in GUIDES if guided.grammar is None]
    for guided in (*small, *(GuidedParams(json_schema=schema) for schema in SCHEMAS.values())):
        own.compile(guided)
    assert own._processes is None


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"type": "integer", "multipleOf": 1024 - number} for number in range(100)]},
        {"properties": {f"p{number}": {} for number in range(100)}, "maxProperties": 50},
        {"properties": {f"p{number}": {} for number in range(100)}, "minProperties": 1},
        {"prefixItems": [{"pattern": f"^{number}(a|b)*a(a|b){{3}}$"} for number in range(30)]},
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_what_few_words_ask_for_much_is_read_elsewhere(schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it here would hold up every thread."""
    converted: list[str] = []
    monkeypatch.setattr("xgrammar.Grammar.from_json_schema", lambda text, **_: converted.append(text))
    assert grammar._small(GuidedParams(json_schema=schema)) is None
    assert not converted


def test_guides_that_were_read_elsewhere_are_the_same(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    guides = [GuidedParams(json_schema=SCHEMA, whitespace="any"), *GUIDES[:3], GuidedParams(json_object=True)]
    here = [new_compiler().compile(guided) for guided in guides]
    monkeypatch.setattr(grammar, "_small", lambda guided: None)
    for seed, (guided, expected) in enumerate(zip(guides, here, strict=True)):
        assert masks_along(compiler.compile(guided), seed) == masks_along(expected, seed)


def test_a_guide_that_takes_too_long_is_refused_alone_and_not_tried_again(compiler: GrammarCompiler) -> None:
    compiler.compile(EBNF)
    ended = process_id(compiler)
    with pytest.raises(InvalidParameterError, match="grammar of guided takes more than 1 s"):
        compiler.compile(HUGE)
    assert not is_running(ended)
    another = GuidedParams(grammar='root ::= "x" | "y" root')
    assert compiler.compile(another).matcher().allows(VOCABULARY.index(b"x"))
    replaced = process_id(compiler)
    started = time.process_time()
    with pytest.raises(InvalidParameterError, match="takes more than 1 s"):
        compiler.compile(HUGE)
    assert process_id(compiler) == replaced and time.process_time() - started < 1.0


def test_a_process_that_died_meanwhile_is_replaced(compiler: GrammarCompiler) -> None:
    compiler.compile(GuidedParams(grammar='root ::= "1"'))
    died = process_id(compiler)
    os.kill(died, signal.SIGKILL)
    while is_running(died):
        time.sleep(0.01)
    compiler.compile(GuidedParams(grammar='root ::= "2"'))
    assert process_id(compiler) != died


def test_small_guides_do_not_wait_for_a_huge_one(compiler: GrammarCompiler) -> None:
    slow = GuidedParams(grammar=HUGE.source + ' | "other"')
    refusals: list[str] = []

    def ask() -> None:
        try:
            compiler.compile(slow)
        except InvalidParameterError as error:
            refusals.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    compiler.compile(GuidedParams(choice=["small"]))
    assert thread.is_alive() and not refusals
    thread.join()
    assert len(refusals) == 1


def test_a_guide_that_nobody_waits_for_leaves_its_process_and_its_place() -> None:
    """Two work, one waits for its turn, and one is wanted by two."""
    own = new_compiler(max_compile_seconds=60.0)
    guides = [GuidedParams(grammar=f'{HUGE.source} | "{number}"') for number in range(3)]
    withdrawals = [Withdrawal() for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        calls = [
            pool.submit(own.compile, guided, withdrawal)
            for guided, withdrawal in zip((*guides, guides[0]), withdrawals, strict=True)
        ]
        wait_until(lambda: own._processes is not None and own._processes._num_places == 0)
        wait_until(lambda: len(own._kept) == 3 and own._kept[guides[0]]._num_waiting == 2)
        for left in (withdrawals[0], withdrawals[2], withdrawals[1]):
            left.withdraw()
        for number in (1, 2):
            with pytest.raises(WithdrawnError):
                calls[number].result(5)
        # The first call works for the last one.
        assert not calls[0].done() and not calls[3].done() and [*own._kept] == [guides[0]]
        # One place is free, though the other one works for who is left.
        assert own.compile(EBNF).matcher().allows(VOCABULARY.index(b"a"))
        withdrawals[3].withdraw()
        for number in (0, 3):
            with pytest.raises(WithdrawnError):
                calls[number].result(5)
    assert own._processes is not None
    assert ([*own._kept], own._processes._num_places) == ([EBNF], 2)
    wait_until(lambda: len(own._processes._idle) == 2)  # type: ignore[union-attr]
    with pytest.raises(WithdrawnError):
        own.compile(guides[1], withdrawals[1])
    assert own.compile(GuidedParams(grammar='root ::= "b"')).matcher().allows(VOCABULARY.index(b"b"))


@pytest.mark.parametrize("num_kills", [1, 2])
def test_a_process_that_is_killed_at_work_is_replaced_once(num_kills: int) -> None:
    own = new_compiler(max_compile_seconds=2.0)
    found: list[str] = []

    def ask() -> None:
        try:
            own.compile(HUGE)
        except InvalidParameterError as error:
            found.append(str(error))

    thread = threading.Thread(target=ask)
    with started_processes() as processes:
        thread.start()
        killed: list[int] = []
        while len(killed) < num_kills:
            wait_until(lambda: len(processes) > len(killed) and processor_seconds(processes[-1]) > 0.5)
            killed.append(processes[-1])
            os.kill(killed[-1], signal.SIGKILL)
        thread.join(60)
    assert len(found) == 1 and ("more than 2 s" if num_kills == 1 else "ends the compiler") in found[0]
    own.compile(EBNF)
    assert not any(map(is_running, processes))


def test_two_compilers_do_not_share_a_process() -> None:
    one, other = new_compiler(), new_compiler()
    one.compile(EBNF)
    other.compile(EBNF)
    pids = process_id(one), process_id(other)
    assert pids[0] != pids[1]
    del one
    gc.collect()
    assert_ends(pids[0])
    assert is_running(pids[1])
    other.compile(GuidedParams(grammar='root ::= "a"'))
    del other
    gc.collect()
    assert_ends(pids[1])


def test_a_program_that_ends_at_work_leaves_no_process() -> None:
    """The main thread is done while another one waits for a guide that takes long."""
    program = textwrap.dedent("""
        import threading, time
        from tests.engine.test_grammar_process import HUGE, new_compiler, processor_seconds, started_processes
        kept = new_compiler(max_compile_seconds=300.0)
        with started_processes() as processes:
            threading.Thread(target=kept.compile, args=(HUGE,), daemon=True).start()
            while not processes or processor_seconds(processes[0]) < 0.5:
                time.sleep(0.01)
        print(processes[0], flush=True)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert_ends(int(done.stdout))


def test_the_process_ends_with_its_parent() -> None:
    program = textwrap.dedent("""
        import os, signal
        from tests.engine.test_grammar_process import EBNF, new_compiler, process_id
        kept = new_compiler()
        kept.compile(EBNF)
        print(process_id(kept), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert_ends(int(done.stdout))


def test_a_guide_that_takes_too_much_memory_ends_its_process_and_so_does_the_end_of_the_compiler() -> None:
    own = new_compiler(max_compile_mb=64, max_compile_seconds=60)
    own.compile(EBNF)
    pid = process_id(own)
    texts = [f"{number} " + "x" * 60 for number in range(12_000)]
    with pytest.raises(InvalidParameterError, match="choice of guided takes more than 64 MiB"):
        own.compile(GuidedParams(choice=texts))
    assert_ends(pid)
    own.compile(GuidedParams(grammar='root ::= "a"'))
    pid = process_id(own)
    del own
    # An error holds the calls that it came through, and they hold it.
    gc.collect()
    assert_ends(pid)
