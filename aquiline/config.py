"""The engine's settings, checked once and never changed afterwards."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

from aquiline.errors import InvalidParameterError
from aquiline.speculation import MAX_DRAFT_TOKENS, DynamicTree, SpeculationMode, TreeShape

Dtype = Literal["float32", "bfloat16"]
AcceptanceRule = Literal["keyed", "multi_round"]
DraftCheck = Literal["off", "warn", "refuse"]
LookupMode = Literal["auto", "on", "off"]
MAX_HISTORY_TOKENS = 2**24
KVCacheDtype = Literal["auto", "bfloat16", "float32", "int8"]
Backend = Literal["auto", "cpu", "pytorch"]
Quantization = Literal["auto", "none", "int8", "int4"]
MAX_CACHE_GB = 2**20
MAX_SECONDS = 10**6


@dataclass(frozen=True)
class CacheConfig:
    """The paged KV cache.

    Attributes:
        block_size: tokens per block.
        num_blocks: blocks in the pool; None derives it from `kv_cache_gb`, or when that is None too, from what
            `max_num_seqs` requests of full length need, at most 1 GiB.
        kv_cache_gb: size of target and draft pages together, in GiB.
        kv_cache_dtype: of keys and values; `auto` is the dtype of the engine, `int8` has a float32 scale for each head
            of each token.
        enable_prefix_cache: keep finished blocks and share them between requests with equal beginnings.
    """

    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_gb: float | None = None
    kv_cache_dtype: KVCacheDtype = "auto"
    enable_prefix_cache: bool = True

    def __post_init__(self) -> None:
        _at_least("block_size", self.block_size, 1)
        if self.num_blocks is not None:
            _at_least("num_blocks", self.num_blocks, 1)
        if self.kv_cache_gb is not None:
            is_number = isinstance(self.kv_cache_gb, int | float) and not isinstance(self.kv_cache_gb, bool)
            if not is_number or not 0 < self.kv_cache_gb <= MAX_CACHE_GB:
                raise InvalidParameterError(
                    f"kv_cache_gb is {self.kv_cache_gb!r}; it must be a positive number of GiB, at most {MAX_CACHE_GB}"
                )
        if self.num_blocks is not None and self.kv_cache_gb is not None:
            raise InvalidParameterError("num_blocks and kv_cache_gb are both set; set only one of them")
        if self.kv_cache_dtype not in get_args(KVCacheDtype):
            raise InvalidParameterError(
                f"kv_cache_dtype is {self.kv_cache_dtype!r}; it must be auto, bfloat16, float32 or int8"
            )
        _true_or_false("enable_prefix_cache", self.enable_prefix_cache)


@dataclass(frozen=True)
class SchedulerConfig:
    """How many requests and tokens one step may hold.

    Attributes:
        max_num_seqs: most requests that run together.
        max_num_batched_tokens: most target rows in a step: prefill tokens and verify tokens together.
        max_model_len: most tokens of a request, prompt and output; None takes the target's context length.
    """

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 1024
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        _at_least("max_num_seqs", self.max_num_seqs, 1)
        _at_least("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidParameterError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens} and max_num_seqs {self.max_num_seqs}; "
                "a step must hold at least one token of every running request"
            )
        if self.max_model_len is not None:
            _at_least("max_model_len", self.max_model_len, 2)


@dataclass(frozen=True)
class Objective:
    """What `--speculate auto` aims at.

    Attributes:
        text: `throughput`: most committed tokens per second of the machine; `latency`: least step time per committed
            token, averaged over the requests; `slo:50`: most throughput with that time at 50 ms or less.
    """

    text: str = "throughput"

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not re.fullmatch(
            r"throughput|latency|slo:[0-9]{1,6}(\.[0-9]+)?", self.text
        ):
            raise InvalidParameterError(
                f"objective is {self.text!r}; it must be throughput, latency, or slo: with milliseconds, as in slo:50"
            )
        if self.limit_seconds == 0.0:
            raise InvalidParameterError(f"objective is {self.text!r}; give more than 0 milliseconds")

    @cached_property
    def limit_seconds(self) -> float | None:
        """Of `slo:`; None for the others."""
        return float(self.text.removeprefix("slo:")) / 1000.0 if self.text.startswith("slo:") else None


@dataclass(frozen=True)
class SpeculateTable:
    """Shapes by load, as `--speculate-table` reads them.

    Attributes:
        entries: (most decoding requests, mode) in ascending order; beyond the last no tree grows.
    """

    entries: tuple[tuple[int, SpeculationMode], ...]

    def __post_init__(self) -> None:
        loads = [load for load, _ in self.entries]
        if not loads or loads[0] < 1 or any(low >= high for low, high in itertools.pairwise(loads)):
            raise InvalidParameterError(
                f"the table is for {loads} requests; it needs ascending numbers, the first at least 1"
            )
        if any(mode.is_auto for _, mode in self.entries):
            raise InvalidParameterError("the table holds auto; give off or a shape for every number of requests")


@dataclass(frozen=True)
class SpeculativeConfig:
    """How the engine speculates.

    Attributes:
        mode: parsed `--speculate`.
        acceptance: `keyed` (one noise for draft and target) or `multi_round` (draws without replacement).
        draft_check: what happens to a draft whose first guesses on a short text are no better than chance: `refuse`
            raises DraftMismatchError when a model is loaded, `warn` warns, `off` does not look.
        lookup: whether draft tokens are also looked up in the text of the request: `auto` where the engine chooses the
            tree or there is no draft model, and only those tokens that pay; `on` always, as many as there is room for;
            `off` never. With `multi_round` there is none: looked-up tokens are not drawn from any distribution.
        lookup_tokens: most looked-up draft tokens of one request in one step, and the longest run of them.
        lookup_history: most tokens of ended outputs that are looked up as well; 0 keeps every request to its own text.
        objective: what `auto` aims at.
        table: shapes by the number of decoding requests, in place of what `auto` would choose.
    """

    mode: SpeculationMode = field(default_factory=lambda: SpeculationMode("auto"))
    acceptance: AcceptanceRule = "keyed"
    draft_check: DraftCheck = "refuse"
    lookup: LookupMode = "auto"
    lookup_tokens: int = 16
    lookup_history: int = 0
    objective: Objective = field(default_factory=Objective)
    table: SpeculateTable | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.mode, SpeculationMode):
            raise InvalidParameterError(f"mode is {self.mode!r}; use parse_speculation, for example on 'chain:4'")
        if self.acceptance not in get_args(AcceptanceRule):
            raise InvalidParameterError(f"acceptance is {self.acceptance!r}; it must be keyed or multi_round")
        if self.draft_check not in get_args(DraftCheck):
            raise InvalidParameterError(f"draft_check is {self.draft_check!r}; it must be off, warn or refuse")
        self._check_lookup()
        if not isinstance(self.objective, Objective):
            raise InvalidParameterError(
                f"objective is {self.objective!r}; use Objective, for example Objective('latency')"
            )
        if self.table is not None:
            if not isinstance(self.table, SpeculateTable):
                raise InvalidParameterError(f"table is {self.table!r}; it must be a SpeculateTable, or None")
            if not self.mode.is_auto:
                raise InvalidParameterError(
                    f"--speculate is {self.mode.text!r} and a table of shapes is given; give only one of them"
                )
        if self.acceptance == "multi_round" and any(isinstance(shape, DynamicTree) for shape in self.shapes):
            raise InvalidParameterError(
                "acceptance multi_round needs a shape that is fixed before drawing; use chain:, tree: or paths:"
            )

    def _check_lookup(self) -> None:
        if self.lookup not in get_args(LookupMode):
            raise InvalidParameterError(f"lookup is {self.lookup!r}; it must be auto, on or off")
        if self.lookup == "on" and self.acceptance == "multi_round":
            raise InvalidParameterError(
                "lookup is 'on' and acceptance 'multi_round', which takes only drawn tokens; use keyed, or lookup off"
            )
        if self.lookup == "on" and self.mode.is_off:
            raise InvalidParameterError("lookup is 'on' and speculation off; choose one of them")
        _between("lookup_tokens", self.lookup_tokens, 1, MAX_DRAFT_TOKENS)
        _between("lookup_history", self.lookup_history, 0, MAX_HISTORY_TOKENS)

    def looks_up(self, has_draft: bool) -> bool:
        """Whether tokens are looked up, beside a draft model or without one."""
        if self.mode.is_off or self.lookup == "off" or self.acceptance == "multi_round":
            return False
        return self.lookup == "on" or self.mode.is_auto or not has_draft

    @property
    def shapes(self) -> tuple[TreeShape, ...]:
        """Every shape that is named."""
        modes = [self.mode] if self.table is None else [mode for _, mode in self.table.entries]
        return tuple(mode.shape for mode in modes if mode.shape is not None)


@dataclass(frozen=True)
class GrammarConfig:
    """What a guide may cost: beyond these limits it is refused, or its request ended, so that others never wait.

    Attributes:
        max_compile_seconds: most processor time that a guide that is not small may take to compile.
        max_compile_mb: most memory that it may take meanwhile, in MiB.
        max_mask_ms: a request whose grammar takes more processor time than that in one step goes on without drafts, and
            where it does so without them, it is aborted.
        max_mask_mean_ms: likewise, when its grammar goes beyond that step after step, until what is beyond comes to a
            hundred times as much.
    """

    max_compile_seconds: float = 10.0
    max_compile_mb: int = 1024
    max_mask_ms: float = 250.0
    max_mask_mean_ms: float = 20.0

    def __post_init__(self) -> None:
        for name in ("max_compile_seconds", "max_mask_ms", "max_mask_mean_ms"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MAX_SECONDS:
                raise InvalidParameterError(f"{name} is {value!r}; it must be a positive number, at most {MAX_SECONDS}")
        _between("max_compile_mb", self.max_compile_mb, 64, MAX_CACHE_GB)


@dataclass(frozen=True)
class EngineConfig:
    """Everything the engine is told.

    Attributes:
        dtype: of KV and of the features that the draft reads; on PyTorch also of weights and activations.
        backend: `cpu` runs models on native kernels, `pytorch` on the reference; `auto` takes the native ones where
            they were built, fit the model, and dtype is bfloat16.
        quantization: of the target's weights on native kernels: `auto` keeps the precision of a GGUF file (Q8_0, Q4_0,
            Q4_1) and takes bfloat16 for every other matrix, `none` is bfloat16, `int8` and `int4` quantise in groups of
            32, except what a GGUF file already holds as small (Q8_0, Q4_0, Q4_1 under `int8`, Q4_0, Q4_1 under
            `int4`). On PyTorch weights are dense, and only `auto` and `none` are taken.
        draft_quantization: likewise of the draft's weights; `auto` is what the draft was trained to be served in, and
            else `int8`. A draft decides how many tokens a step commits, never which, so this trades acceptance against
            the time of a draft.
        check_consistency: after every step recompute each request from scratch and compare all states (slow).
        poison_memory: fill unwritten cache, padding and scratch with NaN, so that a leak cannot hide (tests).
    """

    dtype: Dtype = "bfloat16"
    backend: Backend = "auto"
    quantization: Quantization = "auto"
    draft_quantization: Quantization = "auto"
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    grammars: GrammarConfig = field(default_factory=GrammarConfig)
    check_consistency: bool = False
    poison_memory: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in get_args(Dtype):
            raise InvalidParameterError(f"dtype is {self.dtype!r}; it must be float32 or bfloat16")
        if self.backend not in get_args(Backend):
            raise InvalidParameterError(f"backend is {self.backend!r}; it must be auto, cpu or pytorch")
        for name in ("quantization", "draft_quantization"):
            if getattr(self, name) not in get_args(Quantization):
                raise InvalidParameterError(f"{name} is {getattr(self, name)!r}; it must be auto, none, int8 or int4")
        parts = {
            "cache": CacheConfig,
            "scheduler": SchedulerConfig,
            "speculative": SpeculativeConfig,
            "grammars": GrammarConfig,
        }
        for name, kind in parts.items():
            if not isinstance(getattr(self, name), kind):
                raise InvalidParameterError(f"{name} is {getattr(self, name)!r}; it must be a {kind.__name__}")
        _true_or_false("check_consistency", self.check_consistency)
        _true_or_false("poison_memory", self.poison_memory)

    @property
    def kv_dtype(self) -> Literal["bfloat16", "float32", "int8"]:
        """Of keys and values."""
        return self.dtype if self.cache.kv_cache_dtype == "auto" else self.cache.kv_cache_dtype


def _at_least(name: str, value: object, lowest: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
        raise InvalidParameterError(f"{name} is {value!r}; it must be an integer, at least {lowest}")


def _between(name: str, value: object, lowest: int, highest: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise InvalidParameterError(f"{name} is {value!r}; it must be an integer from {lowest} to {highest}")


def _true_or_false(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidParameterError(f"{name} is {value!r}; it must be true or false")
