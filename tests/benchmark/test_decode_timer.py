"""Timing on a clock that only the fake engines move, and the script in an interpreter with a fake vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from aquiline.benchmark import decode_timer
from aquiline.benchmark.decode_timer import time_decoding, time_prefill

FAKE_VLLM = """
import importlib.util
assert importlib.util.find_spec("decode_timer") is None
__version__ = "9.9"
class SamplingParams:
    def __init__(self, **settings):
        assert settings["ignore_eos"] and settings["temperature"] == 0.0
        self.max_tokens = settings["max_tokens"]
class LLM:
    def __init__(self, **settings):
        assert settings["enable_prefix_caching"] is False
        print({key: settings[key] for key in ("model", "max_model_len", "max_num_seqs")})
    def generate(self, prompts, params, use_tqdm):
        import time
        assert all(isinstance(prompt["prompt_token_ids"], list) for prompt in prompts)
        time.sleep(0.01 * params.max_tokens)
"""


class FakeEngine:
    """A second for each prompt token in tens, and a quarter for each step that draws one token per prompt."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds_per_step: float = 0.25) -> None:
        self.now = 100.0
        self.seconds_per_step = seconds_per_step
        self.calls: list[tuple[int, int]] = []
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
        self.calls.append((len(prompts), num_tokens))
        self.now += 0.1 * sum(map(len, prompts)) + self.seconds_per_step * num_tokens


@pytest.mark.parametrize("num_prompt_tokens", [1, 700])
def test_decoding_is_timed_without_the_prompts(num_prompt_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(monkeypatch)
    rate = time_decoding(engine.generate, [[5] * num_prompt_tokens] * 6, 2, 9)
    assert rate == pytest.approx(2 / 0.25)
    assert engine.calls == [(2, 8)] + [(2, 1), (2, 9)] * 3


def test_decoding_that_takes_no_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(monkeypatch, seconds_per_step=0.0)
    with pytest.raises(ValueError, match="took no longer than one"):
        time_decoding(engine.generate, [[5]], 1, 9)


def test_prefill_counts_prompt_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(monkeypatch)
    assert time_prefill(engine.generate, [5] * 20) == pytest.approx(20 / 2.25)
    assert engine.calls == [(1, 1)] * 4


def test_the_script_times_vllm(tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text(FAKE_VLLM)
    runs = [{"batch_size": size, "speculate": "off", "max_tokens": 5, "prompts": [[1, 2, 3]] * size} for size in (1, 4)]
    job = {"model": "here", "prefill": [7] * 20, "runs": runs}
    result = subprocess.run(
        [sys.executable, decode_timer.__file__],
        input=json.dumps(job),
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded, answer = result.stdout.splitlines()
    assert loaded == "{'model': 'here', 'max_model_len': 21, 'max_num_seqs': 4}"
    assert json.loads(answer)["version"] == "9.9"
    single, batched, prefill = json.loads(answer)["readings"]
    assert (single["kind"], batched["batch_size"], prefill["kind"]) == ("decode", 4, "prefill")
    assert single["tokens_per_second"] > 0.0
    assert batched["tokens_per_second"] > 0.0
