"""Sampling parameters on the device: a row per running request, and the records that one step gathers from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aquiline.kernels.reference.sampling import DenseRows, LogitRules, MinTokens, Penalties
from aquiline.kernels.sampling_kernels import SamplingRequests
from aquiline.request import Request, SamplingParams

SMALLEST_FLOAT = torch.finfo(torch.float32).tiny
# One for the step, and one for each shape that requests ask for beside the step's.
MAX_GATHERED = 8
LARGEST_FLOAT = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class SamplingInputs(SamplingRequests):
    """Everything about sampling that belongs to the requests of one step, in the order of the step.

    What runs is decided by the properties named `any_`: they come from the requests' parameters, never from a tensor.

    Attributes:
        any_greedy: some request has temperature 0.
        max_logprobs: most likely tokens to report per position; None when no request asks for log-probabilities.
    """

    any_greedy: bool
    max_logprobs: int | None

    @property
    def any_random(self) -> bool:
        return self.rules.temperatures is not None

    @property
    def any_bias(self) -> bool:
        return self.rules.bias is not None

    @property
    def any_min_tokens(self) -> bool:
        return self.rules.min_tokens is not None

    @property
    def any_penalty(self) -> bool:
        return self.rules.penalties is not None

    @property
    def any_top_k(self) -> bool:
        return self.rules.top_k is not None

    @property
    def any_top_p(self) -> bool:
        return self.rules.top_p is not None

    @property
    def any_min_p(self) -> bool:
        return self.rules.log_min_p is not None

    @property
    def any_logprobs(self) -> bool:
        return self.max_logprobs is not None

    @property
    def is_greedy(self) -> Tensor:
        """Which requests take the most likely token: [num_reqs] bool."""
        if self.rules.temperatures is None:
            return torch.ones_like(self.seeds, dtype=torch.bool)
        return self.rules.temperatures <= 0


class DenseRowPool:
    """Vocabulary-wide rows, allocated as requests come to need them and reused afterwards.

    Slot 0 stays all zero: it belongs to every request without a row.
    """

    def __init__(self, vocab_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.table = torch.zeros(1, vocab_size, dtype=dtype, device=device)  # [num_slots, vocab]
        self._free: list[int] = []

    def acquire(self) -> int:
        """A slot whose row is all zero."""
        if not self._free:
            num_slots = self.table.shape[0]
            self.table = torch.cat([self.table, torch.zeros_like(self.table)])
            self._free = list(range(2 * num_slots - 1, num_slots - 1, -1))
        slot = self._free.pop()
        self.table[slot] = 0
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back; slot 0 needs no giving back."""
        if slot:
            self._free.append(slot)


@dataclass(slots=True)
class _RowSettings:
    """What the host knows about one occupied device row."""

    params: SamplingParams
    bias_slot: int = 0
    stop_slot: int = 0
    counts_slot: int = 0
    prompt_slot: int = 0


class SamplingState:
    """Sampling parameters and penalty counts of the running requests, indexed by `request.row`.

    A row is written when its request is admitted and released when it leaves. Being preempted and admitted again is the
    same as leaving and arriving: `add` rebuilds everything from `request.token_ids`.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device | str = "cpu") -> None:
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self._settings: list[_RowSettings | None] = [None] * max_num_seqs
        # By rows, and by whether min_tokens holds for any; good for further steps while no row is added or removed.
        self._gathered: dict[tuple[tuple[int, ...], bool], SamplingInputs] = {}
        self._bias = DenseRowPool(vocab_size, torch.float32, self.device)
        self._stop_ids = DenseRowPool(vocab_size, torch.bool, self.device)
        self._output_counts = DenseRowPool(vocab_size, torch.float32, self.device)
        self._prompt_seen = DenseRowPool(vocab_size, torch.bool, self.device)

    def add(self, request: Request) -> None:
        """Build the row of a request that was just admitted, from its parameters and its tokens so far."""
        assert self._settings[request.row] is None, f"sampling row {request.row} is occupied"
        params = request.params
        self._gathered.clear()
        # Entered first, so that `remove` gives back what was acquired if anything here fails.
        settings = self._settings[request.row] = _RowSettings(params)
        if _needs_bias(params):
            settings.bias_slot = self._bias.acquire()
            self._write_bias(params, self._bias.table[settings.bias_slot])
        if params.min_tokens > 0:
            settings.stop_slot = self._stop_ids.acquire()
            stop_ids = [i for i in (*request.eos_token_ids, *params.stop_token_ids) if i < self.vocab_size]
            self._stop_ids.table[settings.stop_slot, self._ids(stop_ids)] = True
        if _needs_counts(params):
            settings.counts_slot = self._output_counts.acquire()
            output_ids = self._ids(request.output_token_ids)
            ones = torch.ones(len(output_ids), device=self.device)
            self._output_counts.table[settings.counts_slot].index_put_((output_ids,), ones, accumulate=True)
        if params.repetition_penalty != 1.0:
            settings.prompt_slot = self._prompt_seen.acquire()
            self._prompt_seen.table[settings.prompt_slot, self._ids(request.prompt_token_ids)] = True

    def remove(self, row: int) -> None:
        """Release the row of a request that finished or was preempted."""
        settings = self._settings[row]
        assert settings is not None, f"sampling row {row} is not occupied"
        self._gathered.clear()
        self._bias.release(settings.bias_slot)
        self._stop_ids.release(settings.stop_slot)
        self._output_counts.release(settings.counts_slot)
        self._prompt_seen.release(settings.prompt_slot)
        self._settings[row] = None

    def append_tokens(self, requests: Sequence[Request], committed_ids: Sequence[Sequence[int]]) -> None:
        """Count the tokens that a step committed, `committed_ids[i]` to `requests[i]`."""
        slots: list[int] = []
        token_ids: list[int] = []
        for request, committed in zip(requests, committed_ids, strict=True):
            slot = self._occupied(request).counts_slot
            if slot:
                slots += [slot] * len(committed)
                token_ids += committed
        if slots:
            ones = torch.ones(len(slots), device=self.device)
            self._output_counts.table.index_put_((self._ids(slots), self._ids(token_ids)), ones, accumulate=True)

    def gather(self, requests: Sequence[Request]) -> SamplingInputs:
        """The inputs of a step that draws tokens for these requests, in this order.

        Step after step with the same requests gets the very same record; penalty counts change inside it.
        """
        any_early = any(request.num_output_tokens < request.params.min_tokens for request in requests)
        key = (tuple(request.row for request in requests), any_early)
        inputs = self._gathered.get(key)
        if inputs is None:
            if len(self._gathered) == MAX_GATHERED:
                self._gathered.clear()
            inputs = self._gathered[key] = self._inputs(requests, any_early)
        return inputs

    def _inputs(self, requests: Sequence[Request], any_early: bool) -> SamplingInputs:
        settings = [self._occupied(request) for request in requests]
        asked = [s.params.logprobs for s in settings if s.params.logprobs is not None]
        return SamplingInputs(
            rules=self._rules(settings, any_early),
            seeds=self._ids([request.seed for request in requests]),
            sample_indices=self._ids([request.sample_index for request in requests]),
            prompt_lengths=self._ids([request.num_prompt_tokens for request in requests]),
            any_greedy=any(s.params.temperature == 0 for s in settings),
            max_logprobs=max(asked, default=None),
        )

    def _rules(self, settings: Sequence[_RowSettings], any_early: bool) -> LogitRules:
        params = [s.params for s in settings]
        random = [p for p in params if p.temperature > 0]
        min_tokens = None
        if any_early:
            stop_ids = DenseRows(self._stop_ids.table, self._ids([s.stop_slot for s in settings]))
            min_tokens = MinTokens(stop_ids, self._ids([p.min_tokens for p in params]))
        bias = None
        if any(s.bias_slot for s in settings):
            bias = DenseRows(self._bias.table, self._ids([s.bias_slot for s in settings]))
        if not random:
            return LogitRules(bias, min_tokens, self._penalties(settings))
        any_top_k = any(0 < p.top_k < self.vocab_size for p in random)
        any_top_p = any(p.top_p < 1 for p in random)
        any_min_p = any(p.min_p > 0 for p in random)
        top_k = self._ids([min(p.top_k or self.vocab_size, self.vocab_size) for p in params])
        top_p = self._floats([p.top_p for p in params], torch.float64)
        log_min_p = self._floats([math.log(p.min_p) if p.min_p > 0 else -math.inf for p in params])
        return LogitRules(
            bias,
            min_tokens,
            self._penalties(settings),
            temperatures=self._floats([_in_float_range(p.temperature) if p.temperature else 0.0 for p in params]),
            top_k=top_k if any_top_k else None,
            top_p=top_p if any_top_p else None,
            log_min_p=log_min_p if any_min_p else None,
        )

    def _penalties(self, settings: Sequence[_RowSettings]) -> Penalties | None:
        if not any(s.counts_slot for s in settings):
            return None
        return Penalties(
            output_counts=DenseRows(self._output_counts.table, self._ids([s.counts_slot for s in settings])),
            prompt_seen=DenseRows(self._prompt_seen.table, self._ids([s.prompt_slot for s in settings])),
            repetition=self._floats([_in_float_range(s.params.repetition_penalty) for s in settings]),
            presence=self._floats([s.params.presence_penalty for s in settings]),
            frequency=self._floats([s.params.frequency_penalty for s in settings]),
        )

    def _write_bias(self, params: SamplingParams, row: Tensor) -> None:
        if params.allowed_token_ids is not None:
            row.fill_(-torch.inf)
            row[self._ids(params.allowed_token_ids)] = 0.0
        if params.logit_bias:
            row[self._ids(list(params.logit_bias))] += self._floats(list(params.logit_bias.values()))
        row[self._ids(params.banned_token_ids)] = -torch.inf

    def _occupied(self, request: Request) -> _RowSettings:
        settings = self._settings[request.row]
        assert settings is not None, f"request {request.request_id} has no sampling row"
        return settings

    def _ids(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def _floats(self, values: Sequence[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)


def _needs_bias(params: SamplingParams) -> bool:
    return bool(params.logit_bias or params.banned_token_ids or params.allowed_token_ids is not None)


def _needs_counts(params: SamplingParams) -> bool:
    return bool(params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty)


def _in_float_range(value: float) -> float:
    """A positive number that stays positive and finite in float32."""
    return min(max(value, SMALLEST_FLOAT), LARGEST_FLOAT)
