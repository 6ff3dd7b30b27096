"""Times any engine that continues token ids; run as a script by another interpreter, it times the vLLM found there.

It stands on the standard library alone, so that every engine with a Python interface is timed by the same lines. A job
comes as JSON on standard input and the answer is the last line of standard output that is a JSON object:

    {"model": "folder", "num_threads": 2, "prefill": [..ids..], "runs": [{"batch_size": 4, "max_tokens": 128,
     "speculate": "off", "prompts": [[..ids..], ..]}]}
    {"version": "0.32.0", "readings": [{"kind": "decode", "batch_size": 4, "speculate": "off",
     "tokens_per_second": 160.2}, {"kind": "prefill", "batch_size": 1, "speculate": "off", "tokens_per_second": 800.1}]}
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Generate = Callable[[Sequence[Sequence[int]], int], None]
"""Continues all prompts at once, each by exactly the given number of tokens, and returns when it has."""

WARM_UP_TOKENS = 8
PREFILL_REPETITIONS = 3


def time_decoding(generate: Generate, prompts: Sequence[Sequence[int]], batch_size: int, max_tokens: int) -> float:
    """Tokens per second of decoding alone, in waves of `batch_size` prompts.

    Every wave is answered twice, once with a single token; the difference is the time of the others.

    Worked example, 2 prompts at once and 5 tokens each: `. .` prefill, `a b` drawn from it, `c d e f g h i j` decoded

        time of 1 token      . . a b                      0.5 s
        time of 5 tokens     . . a b c d e f g h i j      2.5 s
        tokens per second    2 * (5 - 1) / (2.5 - 0.5) = 4

    Raises:
        ValueError: the clock shows no time between the two.
    """
    waves = [prompts[first : first + batch_size] for first in range(0, len(prompts), batch_size)]
    generate(waves[0], min(WARM_UP_TOKENS, max_tokens))
    decoding_seconds = 0.0
    for wave in waves:
        decoding_seconds -= _seconds(generate, wave, 1)
        decoding_seconds += _seconds(generate, wave, max_tokens)
    if decoding_seconds <= 0.0:
        raise ValueError(f"{max_tokens} tokens took no longer than one; measure more tokens")
    return len(prompts) * (max_tokens - 1) / decoding_seconds


def time_prefill(generate: Generate, prompt: Sequence[int]) -> float:
    """Prompt tokens per second, the first output token included in the time."""
    generate([prompt], 1)
    seconds = sum(_seconds(generate, [prompt], 1) for _ in range(PREFILL_REPETITIONS))
    return PREFILL_REPETITIONS * len(prompt) / seconds


def reading(kind: str, run: dict[str, Any], tokens_per_second: float) -> dict[str, Any]:
    """One figure as it is sent; `run` is the part of the job that it belongs to."""
    return {
        "kind": kind,
        "batch_size": run["batch_size"],
        "speculate": run["speculate"],
        "tokens_per_second": tokens_per_second,
    }


def _seconds(generate: Generate, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
    started = time.perf_counter()
    generate(prompts, num_tokens)
    return time.perf_counter() - started


def main() -> None:
    """Time the vLLM of this interpreter on the job that comes on standard input."""
    # Python puts a script's folder first, where the modules beside this one would hide others of the same name.
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]
    import vllm

    job = json.load(sys.stdin)
    longest = max(len(prompt) + run["max_tokens"] for run in job["runs"] for prompt in run["prompts"])
    llm = vllm.LLM(
        model=job["model"],
        dtype="bfloat16",
        max_model_len=max(longest, len(job["prefill"]) + 1),
        max_num_seqs=max(run["batch_size"] for run in job["runs"]),
        enable_prefix_caching=False,
        disable_log_stats=True,
    )

    def generate(prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
        params = vllm.SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        llm.generate([{"prompt_token_ids": list(ids)} for ids in prompts], params, use_tqdm=False)

    readings = [
        reading("decode", run, time_decoding(generate, run["prompts"], run["batch_size"], run["max_tokens"]))
        for run in job["runs"]
    ]
    single = {"batch_size": 1, "speculate": "off"}
    readings.append(reading("prefill", single, time_prefill(generate, job["prefill"])))
    print(json.dumps({"version": vllm.__version__, "readings": readings}), flush=True)


if __name__ == "__main__":
    main()
