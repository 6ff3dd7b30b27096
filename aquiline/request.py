"""What a caller asks for and what comes back."""

from __future__ import annotations

import enum
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams
from aquiline.speculation import SpeculationMode, TreeShape, parse_speculation
from aquiline.speculation_figures import SpeculationFigures

MAX_SEED = 2**63 - 1
MAX_LOGPROBS = 20
MAX_COUNT = 2**31 - 1
MAX_SAMPLES = 1024


class FinishReason(enum.StrEnum):
    """Why a request stopped producing tokens."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class RequestStatus(enum.StrEnum):
    """Where a request is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen. Each field means the same with speculation on and off.

    Attributes:
        temperature: 0 is greedy (ties go to the lowest id); otherwise logits are divided by it.
        top_p: keep the smallest set of most likely tokens whose probability reaches this, in (0, 1].
        top_k: keep the k most likely tokens; 0 keeps all.
        min_p: drop tokens less likely than this share of the most likely one, in [0, 1].
        repetition_penalty: divide positive and multiply negative logits of tokens already in prompt or output; > 0.
        presence_penalty: subtracted from the logit of every token already in the output; in [-2, 2].
        frequency_penalty: subtracted once per earlier occurrence in the output; in [-2, 2].
        logit_bias: added to the logits of these token ids; each in [-100, 100].
        allowed_token_ids: only these ids may be drawn; None allows all.
        banned_token_ids: these ids are never drawn.
        min_tokens: no end-of-sequence or stop token id is drawn before this many output tokens, and no stop string
            ends the request before them.
        max_tokens: most output tokens, at least 1; None runs to the end of the context.
        stop: strings that end the output; the text ends just before the first of them.
        include_stop_str_in_output: keep the stop string at the end of the text.
        stop_token_ids: token ids that end the output, besides the model's own end-of-sequence ids.
        ignore_eos: do not stop at the model's end-of-sequence ids.
        skip_special_tokens: leave special tokens out of the text.
        seed: of the keyed noise, in [0, 2**63); None draws a random one, which is reported with the output.
        n: how many independent outputs to produce, at most 1024; sample i uses noise keyed by (seed, i).
        logprobs: for each output token report its log-probability and those of this many most likely tokens.
        prompt_logprobs: the same for the tokens of the prompt.
        guided: what the text must match; None leaves it free.
        speculation: how to speculate for this request, which changes no token: `auto` as the engine does, `off` not at
            all, or the shape of its own tree in every step, as `--speculate` takes it.

    Raises:
        InvalidParameterError: a value outside its range, of the wrong type, or not a number.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    banned_token_ids: Sequence[int] = ()
    min_tokens: int = 0
    max_tokens: int | None = 256
    stop: Sequence[str] | str = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    guided: GuidedParams | None = None
    speculation: str = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids", "banned_token_ids"):
            object.__setattr__(self, name, _as_tuple(name, getattr(self, name)))
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", _as_tuple("allowed_token_ids", self.allowed_token_ids))
        self._check_numbers()
        self._check_token_ids()
        if any(not isinstance(text, str) or not text for text in self.stop):
            raise InvalidParameterError(f"stop is {self.stop!r}; every stop string must be a non-empty string")
        if any(_has_surrogate(text) for text in self.stop):
            raise InvalidParameterError(f"stop is {self.stop!r}; text with bytes or half characters is never found")
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameterError(f"{name} is {getattr(self, name)!r}; it must be true or false")
        if self.guided is not None and not isinstance(self.guided, GuidedParams):
            raise InvalidParameterError(f"guided is {self.guided!r}; it must be GuidedParams")
        if self.guided is not None and self.ignore_eos:
            raise InvalidParameterError("ignore_eos goes on behind the end that guided demands; give only one of them")
        parse_speculation(self.speculation, "speculation")

    def _check_numbers(self) -> None:
        _check_float("temperature", self.temperature, 0.0, math.inf)
        _check_float("top_p", self.top_p, 0.0, 1.0, lowest_excluded=True)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.0, math.inf, lowest_excluded=True)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_int("top_k", self.top_k, 0, MAX_COUNT)
        _check_int("min_tokens", self.min_tokens, 0, MAX_COUNT)
        _check_int("n", self.n, 1, MAX_SAMPLES)
        for name, highest in (("seed", MAX_SEED), ("logprobs", MAX_LOGPROBS), ("prompt_logprobs", MAX_LOGPROBS)):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), 0, highest)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, MAX_COUNT)
            if self.min_tokens > self.max_tokens:
                raise InvalidParameterError(
                    f"min_tokens is {self.min_tokens} and max_tokens {self.max_tokens}; min_tokens must not be larger"
                )

    def _check_token_ids(self) -> None:
        for name in ("stop_token_ids", "banned_token_ids", "allowed_token_ids"):
            for token_id in getattr(self, name) or ():
                _check_int(f"an entry of {name}", token_id, 0, None)
        if self.allowed_token_ids is not None and not set(self.allowed_token_ids) - set(self.banned_token_ids):
            raise InvalidParameterError("allowed_token_ids leaves no token that may be drawn; name at least one")
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, Mapping):
                raise InvalidParameterError(f"logit_bias is {self.logit_bias!r}; it must map token ids to numbers")
            for token_id, bias in self.logit_bias.items():
                _check_int("a token id of logit_bias", token_id, 0, None)
                _check_float(f"logit_bias[{token_id}]", bias, -100.0, 100.0)
            object.__setattr__(self, "logit_bias", dict(self.logit_bias))

    @property
    def speculation_mode(self) -> SpeculationMode:
        """`speculation`, parsed."""
        return parse_speculation(self.speculation, "speculation")

    def check_vocab(self, vocab_size: int) -> None:
        """Raise InvalidParameterError when a token id named here is not below `vocab_size`."""
        named = {
            "logit_bias": self.logit_bias or (),
            "allowed_token_ids": self.allowed_token_ids or (),
            "banned_token_ids": self.banned_token_ids,
            "stop_token_ids": self.stop_token_ids,
        }
        for name, token_ids in named.items():
            for token_id in token_ids:
                if token_id >= vocab_size:
                    raise InvalidParameterError(
                        f"{name} names token id {token_id}; this model has ids 0 to {vocab_size - 1}"
                    )
        if len(set(self.banned_token_ids)) >= vocab_size:
            raise InvalidParameterError("banned_token_ids bans every token of the model; leave at least one")


def _has_surrogate(text: str) -> bool:
    """Whether a text holds what no output can hold: a byte that is not Unicode, or half a character."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _as_tuple(name: str, value: object) -> tuple[object, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence | set | frozenset):
        raise InvalidParameterError(f"{name} is {value!r}; it must be a list")
    return tuple(value)


def _check_float(name: str, value: object, lowest: float, highest: float, lowest_excluded: bool = False) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if is_number and lowest <= value <= highest and not (lowest_excluded and value == lowest):  # type: ignore[operator]
        return
    least = f"greater than {lowest:g}" if lowest_excluded else f"at least {lowest:g}"
    most = "" if math.isinf(highest) else f" and at most {highest:g}"
    raise InvalidParameterError(f"{name} is {value!r}; it must be a finite number, {least}{most}")


def _check_int(name: str, value: object, lowest: int, highest: int | None) -> None:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if is_integer and value >= lowest and (highest is None or value <= highest):  # type: ignore[operator]
        return
    most = "" if highest is None else f" and at most {highest}"
    raise InvalidParameterError(f"{name} is {value!r}; it must be an integer, at least {lowest}{most}")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probabilities at one position, from the target's raw logits (before bias, penalties and temperature).

    Attributes:
        token_id: the token at this position.
        logprob: its natural log-probability.
        rank: 1 for the most likely token, counted over the whole vocabulary.
        top: (token id, log-probability) of the most likely tokens, best first, as many as were asked for.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True, eq=False)
class Request:
    """One sequence in the engine; integers only, so that scheduling and caching never touch a tensor.

    Worked example, prompt `t0 t1 t2 t3`, one output token `r` drawn and not yet computed, draft in step:

        token_ids              t0 t1 t2 t3 | r
        num_computed_tokens    4              target KV in slots 0..3
        num_draft_rows         4              draft rows in slots 1..3 and 4 (slot 0 has none; slot 4 embeds r)

    Right after the step that drew r, `num_draft_rows` is still behind (the row in slot 4 needs r): the features of
    positions `num_draft_rows .. num_computed_tokens - 1` are pending, and the next draft run consumes them.

    Attributes:
        token_ids: prompt and committed output.
        num_computed_tokens: tokens whose target KV is final in pages; at most len(token_ids) - 1 between steps.
        num_draft_rows: highest slot that holds a final draft row; slots 1..num_draft_rows do.
        num_cached_tokens: tokens that the first admission found in the prefix cache.
        block_ids: the block table, logical to physical.
        row: the device row this request owns while it runs; -1 otherwise.
        prompt_logprobs: one per prompt token computed so far, None for the first; empty when none were asked for.
        step_seconds: wall time of the steps this request took part in.
        speculate: the draft model follows this request.
        looks_up: draft tokens may be looked up for it.
        own_shape: of its tree in every step; None: of the step's.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    eos_token_ids: frozenset[int] = frozenset()
    sample_index: int = 0
    priority: int = 0
    arrival: int = 0
    speculate: bool = True
    looks_up: bool = True
    own_shape: TreeShape | None = None
    token_ids: list[int] = field(default_factory=list)
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_computed_tokens: int = 0
    num_draft_rows: int = 0
    num_cached_tokens: int = 0
    block_ids: list[int] = field(default_factory=list)
    row: int = -1
    output_logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    num_verify_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_lookup_tokens: int = 0
    num_accepted_lookup_tokens: int = 0
    num_preemptions: int = 0
    step_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.token_ids:
            self.token_ids = list(self.prompt_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_token_ids) :]

    @property
    def num_uncomputed_tokens(self) -> int:
        """Known tokens the target has not computed; with 1 the request decodes."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def decodes(self) -> bool:
        """Whether only the root is left to compute."""
        return len(self.token_ids) - self.num_computed_tokens == 1

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One of the n outputs of a request; cumulative: it holds everything committed so far."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    speculation: SpeculationFigures


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The state of one request: its prompt and its n outputs."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None
    outputs: tuple[CompletionOutput, ...]
    seed: int
    num_cached_tokens: int
    finished: bool
