"""Operations on single rows that can be called alone, and sampling over the vocabulary."""

from __future__ import annotations

from functools import partial

import torch

from aquiline.benchmark.interleaved import Case, Work
from aquiline.engine.sample import Sampler
from aquiline.engine.sampling_inputs import SamplingState
from aquiline.kernels.cpu import ops
from aquiline.kernels.sampling_kernels import LogitRows, SamplingKernels
from aquiline.models.model_config import LlamaConfig
from aquiline.request import Request, SamplingParams

FLOAT_BYTES = 4
SAMPLING = {
    "sample greedy": SamplingParams(temperature=0.0),
    "sample keyed": SamplingParams(temperature=1.0),
    "sample top-k 50": SamplingParams(temperature=1.0, top_k=50),
    "sample top-p 0.9": SamplingParams(temperature=1.0, top_p=0.9),
    "sample min-p 0.05": SamplingParams(temperature=1.0, min_p=0.05),
}


def row_cases(config: LlamaConfig, num_rows: int) -> list[Case]:
    """Norm, rotation and the activation of the MLP, each on one thread."""
    hidden, gate = torch.randn(num_rows, config.hidden_size), torch.randn(num_rows, config.intermediate_size)
    num_heads = config.num_heads + config.num_kv_heads
    heads = torch.randn(num_rows, num_heads, config.head_dim)
    angles = torch.rand(num_rows, config.head_dim // 2)
    runs = {
        "rms_norm": (partial(ops.rms_norm, hidden, torch.ones(config.hidden_size), 1e-5), 2 * hidden.numel()),
        "rotate": (partial(ops.rotate, heads, angles.cos(), angles.sin()), 2 * heads.numel()),
        "silu_multiply": (partial(ops.silu_multiply, gate, gate), 3 * gate.numel()),
    }
    return [Case(name, num_rows, run, Work(cache_bytes=FLOAT_BYTES * numbers)) for name, (run, numbers) in runs.items()]


def sampling_cases(kernels: SamplingKernels, vocab_size: int, num_rows: int) -> list[Case]:
    """From logits to drawn tokens, as the engine does it, for as many requests as rows."""
    logits = 3 * torch.randn(num_rows, vocab_size)
    rows = torch.arange(num_rows)
    logit_rows = LogitRows(logits, rows, rows.unsqueeze(1), rows + 10, torch.zeros_like(rows))
    work = Work(cache_bytes=FLOAT_BYTES * logits.numel())
    sampler = Sampler(vocab_size, kernels=kernels)
    cases = []
    for name, params in SAMPLING.items():
        state = SamplingState(num_rows, vocab_size)
        requests = [Request(str(row), (1,), params, seed=row, row=row) for row in range(num_rows)]
        for request in requests:
            state.add(request)
        cases.append(Case(name, num_rows, partial(sampler.accept, state.gather(requests), None, logit_rows), work))
    return cases
