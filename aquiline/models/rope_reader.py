"""Rotary settings of a config.json, in the old place and the new one.

Old: `rope_theta` at top level and a `rope_scaling` object. New (transformers 5): one `rope_parameters` object that
holds the base as well. Both may be there when they say the same.
"""

from __future__ import annotations

from typing import get_args

from aquiline.errors import ModelFormatError, UnsupportedFeatureError
from aquiline.models.config_fields import ConfigFields
from aquiline.models.model_config import RopeConfig, RopeType

DEFAULT_THETA = 10000.0
# Turns in the original context: far beyond what any model sets, and what logarithms bear.
MAX_BETA = 1e6
ROPE_TYPES: dict[str, RopeType] = {kind: kind for kind in get_args(RopeType)}


def read_rope(fields: ConfigFields, max_position: int) -> RopeConfig:
    """The rotary settings; a missing base is 10000, never another model's.

    Args:
        fields: the settings that hold `rope_theta`, `rope_scaling` and `rope_parameters`.
        max_position: context length in tokens, which some scalings fall back on.

    Raises:
        ModelFormatError: a constant missing or out of range, an unknown key, or two places that disagree.
        UnsupportedFeatureError: a kind of scaling that is not offered, or rotation of a part of the head only.
    """
    sections = {name: fields.section(name) for name in ("rope_parameters", "rope_scaling")}
    thetas = {fields.number("rope_theta", above=1.0)} if fields.has("rope_theta") else set()
    for section in sections.values():
        if section is not None and section.has("rope_theta"):
            thetas.add(section.number("rope_theta", above=1.0))
    if len(thetas) > 1:
        raise ModelFormatError(f"{fields.source}: rope_theta is given as {sorted(thetas)}; keep one of them")
    theta = thetas.pop() if thetas else DEFAULT_THETA
    found = {
        name: _read_section(section, fields, theta, max_position)
        for name, section in sections.items()
        if section is not None
    }
    if len(set(found.values())) > 1:
        raise ModelFormatError(f"{fields.source}: rope_parameters and rope_scaling differ; keep one of them")
    return next(iter(found.values()), RopeConfig(theta=theta))


def _read_section(section: ConfigFields, fields: ConfigFields, theta: float, max_position: int) -> RopeConfig:
    kind = _read_kind(section)
    section.value("rope_theta")
    section.demand({"partial_rotary_factor": (1.0,)})
    rope = RopeConfig(theta=theta, kind=kind)
    if kind == "linear":
        rope = RopeConfig(theta=theta, kind=kind, factor=_read_factor(section))
    elif kind == "dynamic":
        rope = RopeConfig(theta=theta, kind=kind, factor=_read_factor(section), original_max_position=max_position)
        section.demand({"original_max_position_embeddings": (max_position,)})
    elif kind == "llama3":
        rope = _read_llama3(section, theta, _read_original_length(section, fields, max_position))
    elif kind == "yarn":
        rope = _read_yarn(section, theta, _read_original_length(section, fields, max_position), max_position)
    section.refuse_unread(("finetuned",))
    return rope


def _read_kind(section: ConfigFields) -> RopeType:
    old, new = section.text("type", ""), section.text("rope_type", "")
    if old and new and old != new:
        raise ModelFormatError(f"{section.source}: rope_type is {new!r} and type {old!r}; keep one of them")
    kind = new or old or "default"
    if kind not in ROPE_TYPES:
        raise UnsupportedFeatureError(
            f"{section.source}: rope_type is {kind!r}; Aquiline knows {', '.join(ROPE_TYPES)}"
        )
    return ROPE_TYPES[kind]


def _read_factor(section: ConfigFields) -> float:
    factor = section.number("factor")
    if factor < 1:
        raise section.wrong("factor", "it must be at least 1")
    return factor


def _read_original_length(section: ConfigFields, fields: ConfigFields, max_position: int) -> int:
    """Context length before scaling: beside or inside the section, else the model's own, as transformers reads it."""
    name = "original_max_position_embeddings"
    outside, inside = fields.optional_integer(name), section.optional_integer(name)
    if outside is not None and inside is not None and outside != inside:
        raise ModelFormatError(f"{fields.source}: {name} is {outside} and {inside} inside; keep one of them")
    return outside or inside or max_position


def _read_llama3(section: ConfigFields, theta: float, original_length: int) -> RopeConfig:
    low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
    if high <= low:
        raise section.wrong("high_freq_factor", f"it must be greater than low_freq_factor, which is {low:g}")
    return RopeConfig(
        theta=theta,
        kind="llama3",
        factor=_read_factor(section),
        original_max_position=original_length,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _read_yarn(section: ConfigFields, theta: float, original_length: int, max_position: int) -> RopeConfig:
    beta_fast, beta_slow = section.number("beta_fast", 32.0), section.number("beta_slow", 1.0)
    if beta_fast < beta_slow:
        raise section.wrong("beta_fast", f"it must not be smaller than beta_slow, which is {beta_slow:g}")
    for name, beta in (("beta_fast", beta_fast), ("beta_slow", beta_slow)):
        if not 1 / MAX_BETA <= beta <= MAX_BETA:
            raise section.wrong(name, f"it must be from {1 / MAX_BETA:g} to {MAX_BETA:g}")
    return RopeConfig(
        theta=theta,
        kind="yarn",
        factor=_read_factor(section) if section.has("factor") else max(1.0, max_position / original_length),
        original_max_position=original_length,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        attention_factor=section.optional_number("attention_factor"),
        mscale=section.optional_number("mscale", above=-1.0) or None,
        mscale_all_dim=section.optional_number("mscale_all_dim", above=-1.0) or None,
        truncate=section.boolean("truncate", True),
    )
