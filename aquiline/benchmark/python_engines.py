"""Aquiline and vLLM as measured programs: the same job, timed by the same lines of `decode_timer`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

from aquiline.benchmark import decode_timer
from aquiline.benchmark.peers import Program, ProgramOutput, Reading, positive_rate

AQUILINE = "aquiline"
VLLM = "vllm"
PREFILL_TOKENS = 512
# A batch of one is over in a moment; plain decoding is timed on at least this many prompts.
MIN_PROMPTS = 4


@dataclass(frozen=True)
class Workload:
    """What all engines are asked for.

    Attributes:
        prompts: token ids of every prompt.
        batch_sizes: of plain decoding.
        max_tokens: output tokens of every request.
        num_threads: CPU threads of every engine.
    """

    prompts: tuple[tuple[int, ...], ...]
    batch_sizes: tuple[int, ...]
    max_tokens: int
    num_threads: int

    @property
    def mean_prompt_tokens(self) -> int:
        """Length of the context at which engines that take no prompts begin to decode."""
        return round(sum(map(len, self.prompts)) / len(self.prompts))

    def plain_prompts(self, batch_size: int) -> list[tuple[int, ...]]:
        """Whole waves of `batch_size` prompts, taken evenly from all of them.

        Worked example, prompts a b c d e f g h: batch size 1 takes a c e g, batch size 16 takes a a b b ... h h.
        """
        num_wanted = batch_size * -(-MIN_PROMPTS // batch_size)
        return [self.prompts[index * len(self.prompts) // num_wanted] for index in range(num_wanted)]

    def plain_runs(self) -> list[dict[str, Any]]:
        """A job's runs without speculation."""
        return [self._run(size, "off", self.plain_prompts(size)) for size in self.batch_sizes]

    def speculative_run(self, speculate: str) -> dict[str, Any]:
        """A job's run at batch size 1 with draft trees; acceptance varies, so all prompts are answered."""
        return self._run(1, speculate, self.prompts)

    def prefill_prompt(self) -> list[int]:
        """`PREFILL_TOKENS` ids: the prompts one after the other, and again."""
        return list(islice(cycle(chain.from_iterable(self.prompts)), PREFILL_TOKENS))

    def _run(self, batch_size: int, speculate: str, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
        return {
            "batch_size": batch_size,
            "speculate": speculate,
            "max_tokens": self.max_tokens,
            "prompts": [list(prompt) for prompt in prompts],
        }


@dataclass(frozen=True)
class OwnModel:
    """What Aquiline loads: as `LLM` takes it. `speculate` is `off` or the tree to measure besides plain decoding."""

    model: str
    file: str
    draft: str
    quantization: str
    speculate: str


def own_program(own: OwnModel, workload: Workload) -> Program:
    """Aquiline in a process of its own."""
    runs = workload.plain_runs()
    if own.speculate != "off":
        runs.append(workload.speculative_run(own.speculate))
    job = {
        "model": own.model,
        "draft": own.draft,
        "quantization": own.quantization,
        "num_threads": workload.num_threads,
        "prefill": workload.prefill_prompt(),
        "runs": runs,
    }
    command = (sys.executable, "-m", "aquiline.benchmark.own_decoding")
    return Program(AQUILINE, own.file, command, parse_answer, standard_input=json.dumps(job))


def vllm_program(interpreter: Path, model: Path, workload: Workload) -> Program:
    """The vLLM of `interpreter` on a Hugging Face folder, in bfloat16."""
    job = {"model": str(model), "prefill": workload.prefill_prompt(), "runs": workload.plain_runs()}
    return Program(
        VLLM,
        model.name,
        (str(interpreter), str(Path(decode_timer.__file__).resolve())),
        parse_answer,
        _vllm_environment(interpreter, workload.num_threads, os.environ),
        json.dumps(job),
    )


def parse_answer(output: str) -> ProgramOutput:
    """The answer of `decode_timer`, wherever it stands between the lines that an engine logs.

    Raises:
        ValueError: there is none.
        KeyError, TypeError: a figure is missing or is no number.
    """
    answers = []
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                answers.append(json.loads(line))
            except ValueError:
                continue
    if not answers:
        raise ValueError("no line is a JSON object")
    readings = [
        Reading(
            entry["kind"], int(entry["batch_size"]), str(entry["speculate"]), positive_rate(entry["tokens_per_second"])
        )
        for entry in answers[-1]["readings"]
    ]
    return ProgramOutput(str(answers[-1]["version"]), tuple(readings))


def _vllm_environment(interpreter: Path, num_threads: int, inherited: Mapping[str, str]) -> dict[str, str]:
    """What makes vLLM fast on a CPU; what the caller has set already stays.

    Left alone vLLM keeps one core for itself and computes on the others; the binding gives it all that are asked for.
    """
    cores = sorted(os.sched_getaffinity(0))[:num_threads]
    wanted = {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    # vLLM asks for Intel's OpenMP in front of all other libraries, and its packages bring it.
    openmp = interpreter.parent.parent / "lib" / "libiomp5.so"
    if openmp.is_file():
        wanted["LD_PRELOAD"] = str(openmp)
    return {name: value for name, value in wanted.items() if name not in inherited}
