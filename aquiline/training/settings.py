"""Everything a training run is told, checked once and never changed afterwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from aquiline.config import Dtype
from aquiline.errors import InvalidParameterError

DraftKind = Literal["eagle3", "eagle1"]
LossName = Literal["kl", "ce", "lk", "lk_hybrid", "eagle1"]
ServedQuantization = Literal["none", "int8", "int4"]

START_NAMES = ("copy", "random")
MAX_LAYERS = 4
MAX_TTT_STEPS = 16
LOSSES_OF_KIND: dict[str, tuple[LossName, ...]] = {
    "eagle3": ("kl", "ce", "lk", "lk_hybrid"),
    "eagle1": ("eagle1", "kl", "ce", "lk", "lk_hybrid"),
}


@dataclass(frozen=True)
class DraftSettings:
    """The draft model to train.

    Attributes:
        kind: `eagle3` (fuses several target layers, own head) or `eagle1` (one feature, the target's head).
        num_layers: dense decoder layers, 1 to 4.
        draft_vocab_size: rows of an eagle3 head; None: the target's whole vocabulary. An eagle1 head has all of it.
        intermediate_size: of the draft's MLP; None: the target's.
        aux_layer_ids: target layers whose OUTPUT is read, counted from 0, ascending; None: the field's default. eagle3.
        norm_before_residual: the residual stream starts from the normalised hidden state. eagle3.
        fc_norm: one RMSNorm per captured layer before fc (EAGLE-3.1). eagle3.
        norm_output: feed the hidden state after the final norm to the next step (EAGLE-3.1). eagle3.
        start: `copy` begins with the target's last layers, head rows and final norm (better than random by a fifth
            early on); `random` with small noise; anything else is the folder of a draft of the same shapes, whose
            training goes on, perhaps with another vocabulary.
    """

    kind: DraftKind = "eagle3"
    num_layers: int = 1
    draft_vocab_size: int | None = 8192
    intermediate_size: int | None = None
    aux_layer_ids: tuple[int, ...] | None = None
    norm_before_residual: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    start: str = "copy"

    def __post_init__(self) -> None:
        _one_of("kind", self.kind, get_args(DraftKind))
        _integer("num_layers", self.num_layers, 1, MAX_LAYERS)
        if not isinstance(self.start, str) or not self.start:
            raise InvalidParameterError(f"start is {self.start!r}; it must be copy, random or the folder of a draft")
        for name in ("draft_vocab_size", "intermediate_size"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 1)
        for name in ("norm_before_residual", "fc_norm", "norm_output"):
            _true_or_false(name, getattr(self, name))
            if self.kind == "eagle1" and getattr(self, name):
                raise InvalidParameterError(f"{name} is an option of eagle3 heads, and kind is 'eagle1'; leave it out")
        if self.aux_layer_ids is not None:
            self._check_aux_layers(self.aux_layer_ids)

    def _check_aux_layers(self, ids: Sequence[object]) -> None:
        if self.kind == "eagle1":
            raise InvalidParameterError(
                "aux_layer_ids is an option of eagle3 heads, and kind is 'eagle1'; leave it out"
            )
        is_list = isinstance(ids, tuple) and all(isinstance(i, int) and not isinstance(i, bool) for i in ids)
        if not is_list or not ids or list(ids) != sorted(set(ids)) or ids[0] < 0:  # type: ignore[type-var, operator]
            raise InvalidParameterError(
                f"aux_layer_ids is {ids!r}; it must be a tuple of ascending layer numbers, counted from 0"
            )


@dataclass(frozen=True)
class StageSettings:
    """One stretch of a run, with a learning rate that warms up and falls along a cosine.

    Attributes:
        ttt_steps: positions trained for each row: the first from the target's true features, the others self-fed
            (training-time test of EAGLE-3); 1 feeds nothing back.
        learning_rate: the highest; norm gains get `TrainingSettings.norm_rate_factor` times as much.
        epochs: passes over the examples; a part of one is allowed.
        loss: `kl` (Kullback-Leibler divergence from the target's distribution over the draft vocabulary), `ce` (cross
            entropy with the target's most likely token), `lk` (minus the log of the acceptance rate), `lk_hybrid`
            (from kl to acceptance as it grows; arXiv 2602.23881), `eagle1` (smooth L1 on the next feature and a tenth
            of kl; arXiv 2401.15077).
    """

    ttt_steps: int = 1
    learning_rate: float = 1e-3
    epochs: float = 1.0
    loss: LossName = "kl"

    def __post_init__(self) -> None:
        _integer("ttt_steps", self.ttt_steps, 1, MAX_TTT_STEPS)
        _number("learning_rate", self.learning_rate, above=0.0, most=1.0)
        _number("epochs", self.epochs, above=0.0, most=1e6)
        _one_of("loss", self.loss, get_args(LossName))


def default_stages() -> tuple[StageSettings, ...]:
    """The usual recipe: true features first, then self-fed at a lower rate."""
    return (StageSettings(1, 1e-3, 3.0), StageSettings(4, 6e-4, 1.0))


@dataclass(frozen=True)
class TrainingSettings:
    """A training run.

    Attributes:
        draft: the model to train.
        stages: run one after the other.
        step_decay: step i of a row weighs step_decay ** i.
        tokens_per_step: answer tokens of an optimiser step, all processes together; it takes whole conversations until
            it has that many.
        max_length: tokens of a conversation that are used; what follows is cut off.
        rows_per_pack: tokens computed together; several conversations share a pack, and the gradients of the packs of
            a step add up. Bounds memory.
        norm_rate_factor: learning rate of norm gains, relative to that of matrices.
        beta1, beta2, weight_decay: of AdamW; norm gains do not decay.
        warmup_share: share of a stage in which the learning rate rises.
        final_rate_share: learning rate at the end of a stage, relative to the highest.
        max_gradient_norm: longer gradients are scaled down to it.
        ema_decay: of the exponential moving average of the weights that is exported; 0 exports the weights themselves.
        feature_noise: eagle1 only: width of the uniform noise on input features, divided by the number of tokens / 512.
        freeze_head: leave the head as it starts (a fifth faster, about as good early on).
        quantization_aware: compute with weights rounded to `int8` or `int4`, so that the draft learns to be served in
            that quantization; `none`: with exact ones.
        dtype: of activations and of the weights as they are used; the weights that are trained are float32.
        seed: of data order, start and noise.
        checkpoint_every: answer tokens between checkpoints.
        keep_checkpoints: newest checkpoints that are kept besides the best.
        label_cache_gb: most disk space for the target's hidden states, in GiB, so that later epochs need not run it
            again; 0 keeps none. A row takes the bytes of its features, and of a hidden state where it is trained: at
            most 4.6 kB for a target of width 576.
        label_folder: where they are kept after the run, for other runs on the same data with the same layers; None: in
            the run's folder while it goes on.
    """

    draft: DraftSettings = field(default_factory=DraftSettings)
    stages: tuple[StageSettings, ...] = field(default_factory=default_stages)
    step_decay: float = 0.8
    tokens_per_step: int = 256
    max_length: int = 2048
    rows_per_pack: int = 2048
    norm_rate_factor: float = 5.0
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    warmup_share: float = 0.02
    final_rate_share: float = 0.0
    max_gradient_norm: float = 1.0
    ema_decay: float = 0.0
    feature_noise: float = 0.2
    freeze_head: bool = False
    quantization_aware: ServedQuantization = "none"
    dtype: Dtype = "bfloat16"
    seed: int = 0
    checkpoint_every: int = 100_000
    keep_checkpoints: int = 2
    label_cache_gb: float = 8.0
    label_folder: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.draft, DraftSettings):
            raise InvalidParameterError(f"draft is {self.draft!r}; it must be a DraftSettings")
        is_tuple = isinstance(self.stages, tuple) and bool(self.stages)
        if not is_tuple or not all(isinstance(stage, StageSettings) for stage in self.stages):
            raise InvalidParameterError(f"stages is {self.stages!r}; it must be a tuple of StageSettings, not empty")
        for stage in self.stages:
            _one_of(f"loss of a stage, for {self.draft.kind} drafts,", stage.loss, LOSSES_OF_KIND[self.draft.kind])
        _integer("tokens_per_step", self.tokens_per_step, 1)
        _integer("max_length", self.max_length, 4)
        _integer("rows_per_pack", self.rows_per_pack, 4)
        _integer("checkpoint_every", self.checkpoint_every, 1)
        _integer("keep_checkpoints", self.keep_checkpoints, 1)
        _integer("seed", self.seed, 0, 2**63 - 1)
        for name in ("step_decay", "beta1", "beta2", "warmup_share", "final_rate_share", "ema_decay", "feature_noise"):
            _number(name, getattr(self, name), least=0.0, most=1.0)
        for name in ("beta1", "beta2", "ema_decay"):
            if getattr(self, name) == 1.0:
                raise InvalidParameterError(f"{name} is 1, which never moves; it must be below 1")
        _number("norm_rate_factor", self.norm_rate_factor, above=0.0, most=1000.0)
        _number("weight_decay", self.weight_decay, least=0.0, most=10.0)
        _number("max_gradient_norm", self.max_gradient_norm, above=0.0, most=1e9)
        _number("label_cache_gb", self.label_cache_gb, least=0.0, most=2.0**20)
        if self.label_folder is not None and (not isinstance(self.label_folder, str) or not self.label_folder):
            raise InvalidParameterError(
                f"label_folder is {self.label_folder!r}; it must be the name of a folder, or None"
            )
        if self.label_folder is not None and not self.label_cache_gb:
            raise InvalidParameterError("label_folder is set and label_cache_gb is 0; set both, or neither")
        _one_of("dtype", self.dtype, get_args(Dtype))
        _one_of("quantization_aware", self.quantization_aware, get_args(ServedQuantization))
        _true_or_false("freeze_head", self.freeze_head)

    @property
    def said_quantization(self) -> str:
        """What a draft that is trained with these settings says of itself: `DraftMetadata.quantization`."""
        return "" if self.quantization_aware == "none" else self.quantization_aware


def _integer(name: str, value: object, least: int, most: int | None = None) -> None:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or value < least or (most is not None and value > most):  # type: ignore[operator]
        allowed = f"at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidParameterError(f"{name} is {value!r}; it must be an integer, {allowed}")


def _number(name: str, value: object, *, least: float = -math.inf, above: float = -math.inf, most: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not above < value <= most or not value >= least:  # type: ignore[operator]
        lowest = f"at least {least:g}" if least > -math.inf else f"above {above:g}"
        raise InvalidParameterError(f"{name} is {value!r}; it must be a number {lowest} and at most {most:g}")


def _one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InvalidParameterError(f"{name} is {value!r}; it must be {' or '.join(allowed)}")


def _true_or_false(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidParameterError(f"{name} is {value!r}; it must be true or false")
