"""Every setting of a training run as a command-line option and as a key of a YAML file, and back to the records."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aquiline.cli.options import ENGINE_OPTIONS
from aquiline.cli.other_names import meant_key
from aquiline.cli.parser import Option, integer, integer_or_none, number
from aquiline.cli.yaml_file import YamlEntry
from aquiline.errors import InvalidParameterError
from aquiline.training.settings import StageSettings

STAGE_FORM = "ttt_steps=4,learning_rate=6e-4,epochs=1,loss=kl"
STAGE_FIELDS: dict[str, Callable[[str], object]] = {
    "ttt_steps": integer,
    "learning_rate": number,
    "epochs": number,
    "loss": str,
}


def stage(text: str) -> StageSettings:
    """Parse `ttt_steps=4,learning_rate=6e-4,...`; what is left out keeps its default."""
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or name not in STAGE_FIELDS or name in values:
            raise argparse.ArgumentTypeError(f"{text!r} is not like {STAGE_FORM}, each name at most once")
        values[name] = STAGE_FIELDS[name](value)
    return StageSettings(**values)


def layer_ids(text: str) -> tuple[int, ...]:
    """Parse `1,14,26`."""
    return tuple(integer(part) for part in text.split(","))


DRAFT_OPTIONS = (
    Option("--kind", "kind", "of head: eagle3 or eagle1", str, "KIND"),
    Option("--num-layers", "num_layers", "decoder layers of the head, 1 to 4", integer, "N"),
    Option("--draft-vocab-size", "draft_vocab_size", "tokens the head may propose; none: all", integer_or_none, "N"),
    Option("--intermediate-size", "intermediate_size", "of the head's MLP; none: the target's", integer_or_none, "N"),
    Option("--aux-layer-ids", "aux_layer_ids", "target layers whose outputs are read, from 0", layer_ids, "ID,ID,ID"),
    Option("--norm-before-residual", "norm_before_residual", "the residual stream starts from the normalised state"),
    Option("--fc-norm", "fc_norm", "one norm for each layer that is read (EAGLE-3.1)"),
    Option("--norm-output", "norm_output", "feed the normalised state to the next position (EAGLE-3.1)"),
    Option("--start", "start", "with copies of the target's layers, random weights, or a draft's folder", str, "HOW"),
)
TRAINING_OPTIONS = (
    Option(
        "--stage", "stages", f"one stretch of the run, for example {STAGE_FORM}", stage, "STAGE", is_repeatable=True
    ),
    Option("--step-decay", "step_decay", "self-fed step i weighs this to the power of i", number, "X"),
    Option("--tokens-per-step", "tokens_per_step", "answer tokens of an optimiser step", integer, "N"),
    Option("--max-length", "max_length", "tokens of a conversation that are used", integer, "N"),
    Option("--rows-per-pack", "rows_per_pack", "tokens computed together; bounds memory", integer, "N"),
    Option(
        "--norm-rate-factor", "norm_rate_factor", "learning rate of norm gains beside that of matrices", number, "X"
    ),
    Option("--beta1", "beta1", "of AdamW", number, "X"),
    Option("--beta2", "beta2", "of AdamW", number, "X"),
    Option("--weight-decay", "weight_decay", "of AdamW", number, "X"),
    Option("--warmup-share", "warmup_share", "share of a stage in which the learning rate rises", number, "X"),
    Option("--final-rate-share", "final_rate_share", "learning rate at the end beside the highest", number, "X"),
    Option("--max-gradient-norm", "max_gradient_norm", "longer gradients are scaled down to it", number, "X"),
    Option("--ema-decay", "ema_decay", "of the moving average of the weights that is written; 0: none", number, "X"),
    Option("--feature-noise", "feature_noise", "on the features of eagle1 heads", number, "X"),
    Option("--freeze-head", "freeze_head", "leave the head's last matrix as it starts"),
    Option(
        "--quantization-aware",
        "quantization_aware",
        "round weights in training as they will be served: none, int8 or int4",
        str,
        "KIND",
    ),
    Option("--dtype", "dtype", "of activations, and of features as served: bfloat16 or float32", str, "DTYPE"),
    Option("--seed", "seed", "of data order, start and noise", integer, "S"),
    Option("--checkpoint-every", "checkpoint_every", "answer tokens between checkpoints", integer, "N"),
    Option("--keep-checkpoints", "keep_checkpoints", "newest checkpoints that stay beside the best", integer, "N"),
    Option("--label-cache-gb", "label_cache_gb", "most disk space for the target's states, in GiB", number, "GIB"),
    Option("--label-folder", "label_folder", "where they stay after the run, for other runs on this data", str, "DIR"),
)
EVALUATION_OPTIONS = (
    Option("--eval-max-tokens", "max_tokens", "most tokens of an answer in evaluations", integer, "N"),
    Option("--eval-max-depth", "max_depth", "depth of the chain and the trees in evaluations", integer, "N"),
    Option("--eval-batch-size", "batch_size", "answers of evaluations that run together", integer, "N"),
)
SERVING_OPTIONS = tuple(
    option for option in ENGINE_OPTIONS if option.field in ("backend", "quantization", "draft_quantization")
)
RUN_OPTIONS = (
    Option("--target", "target", "needed: the model to draft for, as --model of generate", str, "MODEL"),
    Option("--output", "output", "needed: folder of the run; where it holds one, that run goes on", str, "DIR"),
    Option(
        "--data",
        "data",
        "needed: folder that train-data has written, JSONL file, or self",
        str,
        "PATH",
        is_repeatable=True,
    ),
    Option("--num-tokens", "num_tokens", "answer tokens that the target writes with --data self", integer, "N"),
    Option("--eval-prompts", "eval_prompts", "JSONL file, as for generate, with category", str, "FILE"),
    Option("--device", "device", "where the head is trained: auto, cpu or cuda", str, "NAME"),
    Option("--threads", "num_threads", "CPU threads; else OMP_NUM_THREADS, or physical cores", integer, "N"),
    Option("--no-plot", "has_plot", "draw no picture of the run", switch_value=False),
)
ALL_OPTIONS = (*RUN_OPTIONS, *DRAFT_OPTIONS, *TRAINING_OPTIONS, *EVALUATION_OPTIONS, *SERVING_OPTIONS)

KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    integer: ("an integer", lambda value: _is_number(value, int)),
    integer_or_none: ("an integer or null", lambda value: value is None or _is_number(value, int)),
    number: ("a number", lambda value: _is_number(value, int, float)),
    str: ("a text", lambda value: isinstance(value, str)),
    layer_ids: ("a list of integers", lambda value: _is_list(value, lambda entry: _is_number(entry, int))),
    None: ("true or false", lambda value: isinstance(value, bool)),
}


def key_of(option: Option) -> str:
    """The option's key in a YAML file: `--tokens-per-step` is tokens_per_step, and `--stage` is stages."""
    return "stages" if option.field == "stages" else option.flag.removeprefix("--").replace("-", "_")


def values_of_file(entries: Mapping[str, YamlEntry], options: Sequence[Option] = ALL_OPTIONS) -> dict[str, Any]:
    """Field name to value for the settings of a YAML file.

    Raises:
        InvalidParameterError: an unknown key, or a value of another type; with file and line.
    """
    by_key = {key_of(option): option for option in options}
    values: dict[str, Any] = {}
    for key, entry in entries.items():
        if key not in by_key:
            meant = meant_key(key, by_key)
            hint = f"; perhaps {meant.replace('-', '_')} is meant" if meant else ""
            raise InvalidParameterError(
                f"{entry.place}: {key!r} is not a setting of train{hint}; see aquiline train --help"
            )
        values[by_key[key].field] = _value(by_key[key], key, entry)
    return values


def _value(option: Option, key: str, entry: YamlEntry) -> Any:
    value = entry.value
    if option.field == "stages":
        return [_stage_of(fields, entry.place) for fields in _list_of(value, "mappings", key, entry.place)]
    if option.is_repeatable:
        texts = [value] if isinstance(value, str) else _list_of(value, "texts", key, entry.place)
        return [_checked(text, str, f"an entry of {key}", entry.place) for text in texts]
    checked = _checked(value, option.parse, key, entry.place)
    if option.parse is None:
        return option.switch_value if checked else not option.switch_value
    return tuple(checked) if isinstance(checked, list) else checked


def _list_of(value: Any, of_what: str, key: str, place: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise InvalidParameterError(f"{place}: {key} is {value!r}; it must be a list of {of_what}")
    return value


def _checked(value: Any, parse: Any, name: str, place: str) -> Any:
    expected, is_right = KINDS[parse]
    if not is_right(value):
        raise InvalidParameterError(f"{place}: {name} is {value!r}; it must be {expected}")
    return value


def _stage_of(fields: Any, place: str) -> StageSettings:
    if not isinstance(fields, dict) or not set(fields) <= set(STAGE_FIELDS):
        raise InvalidParameterError(
            f"{place}: a stage is {fields!r}; it must be a mapping with some of {', '.join(STAGE_FIELDS)}"
        )
    for name, value in fields.items():
        _checked(value, STAGE_FIELDS[name], f"{name} of a stage", place)
    try:
        return StageSettings(**fields)
    except InvalidParameterError as error:
        raise InvalidParameterError(f"{place}: {error}") from None


def for_record(record: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are fields of a record."""
    names = {field.name for field in dataclasses.fields(record)}
    return {name: value for name, value in values.items() if name in names}


def _is_number(value: Any, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _is_list(value: Any, is_right: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_right, value))
