"""Aquiline as one of the measured programs: `python -m aquiline.benchmark.own_decoding`.

Job and answer are those of `decode_timer`; the job has `draft` and `quantization` besides.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aquiline.benchmark.decode_timer import Generate, reading, time_decoding, time_prefill
from aquiline.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculativeConfig
from aquiline.errors import UserError
from aquiline.llm import LLM
from aquiline.request import SamplingParams
from aquiline.speculation import SpeculationMode, parse_speculation

PLAIN = {"batch_size": 1, "speculate": "off"}


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Do a job: every run, then the prefill of its prompt.

    Raises:
        UserError: the model cannot be loaded as the job says, or a prompt does not fit it.
        ValueError: a run was too short to be timed.
    """
    modes = [parse_speculation(run["speculate"]) for run in job["runs"]]
    speculating = [mode for mode in modes if not mode.is_off]
    config = EngineConfig(
        quantization=job["quantization"],
        # Every run asks its prompts more than once.
        cache=CacheConfig(enable_prefix_cache=False),
        scheduler=SchedulerConfig(max_num_seqs=max(run["batch_size"] for run in job["runs"])),
        # The other engines take any draft, too.
        speculative=SpeculativeConfig((speculating or modes)[0], draft_check="off"),
    )
    llm = LLM(job["model"], draft=job["draft"], config=config, num_threads=job["num_threads"])
    readings = []
    for run, mode in zip(job["runs"], modes, strict=True):
        generate = _generate(llm, mode)
        tokens_per_second = time_decoding(generate, run["prompts"], run["batch_size"], run["max_tokens"])
        readings.append(reading("decode", run, tokens_per_second))
    plain = _generate(llm, parse_speculation("off"))
    readings.append(reading("prefill", PLAIN, time_prefill(plain, job["prefill"])))
    return {"version": f"{llm.backend} backend", "readings": readings}


def _generate(llm: LLM, mode: SpeculationMode) -> Generate:
    other = llm.reconfigured(replace(llm.config, speculative=SpeculativeConfig(mode)))

    def generate(prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
        outputs = other.generate(prompts, SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True))
        if any(len(output.outputs[0].token_ids) != num_tokens for output in outputs):
            raise ValueError(f"the context or the cache has no room for a prompt and {num_tokens} output tokens")

    return generate


def main() -> None:
    """Do the job that comes on standard input."""
    try:
        result = measure(json.load(sys.stdin))
    except (UserError, ValueError) as error:
        raise SystemExit(str(error)) from None
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
