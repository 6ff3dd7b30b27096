"""What a draft's config.json says about its origin and its worth, under the key `aquiline`; docs/drafts.md shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aquiline.errors import InvalidParameterError, ModelFormatError
from aquiline.models.config_fields import ConfigFields, read_json_object

METADATA_KEY = "aquiline"
# That a draft can be trained for.
QUANTIZATIONS = ("int8", "int4")


@dataclass(frozen=True)
class AcceptanceFigures:
    """What a chain of a draft was measured to reach.

    Attributes:
        prompts: on which prompts, in words.
        temperature: of the target.
        conditional_per_position: share of the draft tokens accepted at each position, given that all before were.
    """

    prompts: str
    temperature: float
    conditional_per_position: tuple[float, ...]

    @property
    def acceptance_length(self) -> float:
        """Committed tokens per verify step, for a chain with as many draft tokens as there are figures."""
        return chain_acceptance_length(self.conditional_per_position)


@dataclass(frozen=True)
class DraftMetadata:
    """Origin and worth of a draft; everything may be missing.

    Attributes:
        target: name of the model it drafts for.
        num_target_layers: of that model.
        acceptance: figures measured for the draft.
        acceptance_prior: share of the steps in which the target's token is the draft's candidate of each rank, by
            depth: `acceptance_prior[depth - 1][rank]`, given that the path above was accepted; at temperature 0.
        acceptance_prior_sampled: the same at temperature 1.
        quantization: `int8` or `int4`, where the draft was trained to be served in that; "" where it was not.
        provenance: anything else, ready for JSON: data, recipe, versions.
    """

    target: str = ""
    num_target_layers: int | None = None
    acceptance: tuple[AcceptanceFigures, ...] = ()
    acceptance_prior: tuple[tuple[float, ...], ...] = ()
    acceptance_prior_sampled: tuple[tuple[float, ...], ...] = ()
    quantization: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)


def served_quantization(asked: str, metadata: DraftMetadata) -> str:
    """What `auto` means for a draft: what it was trained for, and else int8; anything else that is asked for stands."""
    return (metadata.quantization or "int8") if asked == "auto" else asked


def chain_acceptance_length(conditional_per_position: tuple[float, ...]) -> float:
    """Committed tokens per verify step of a chain: 1 and the chance that each draft token is reached and accepted.

    Worked example, .5 then .4 then .5: 1 + .5 + .5 * .4 + .5 * .4 * .5 = 1.8.
    """
    length, survival = 1.0, 1.0
    for conditional in conditional_per_position:
        survival *= conditional
        length += survival
    return length


def read_draft_metadata(folder: Path) -> DraftMetadata:
    """What the draft in a folder says about itself; an empty record where it says nothing.

    Raises:
        ModelFormatError: config.json cannot be read, or its section `aquiline` has an unknown key or a wrong value.
    """
    path = folder / "config.json"
    section = ConfigFields(read_json_object(path), str(path)).section(METADATA_KEY)
    if section is None:
        return DraftMetadata()
    entries = section.value("acceptance") or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise section.wrong("acceptance", "it must be a list of objects")
    provenance = section.section("provenance")
    metadata = DraftMetadata(
        target=section.text("target", ""),
        num_target_layers=section.optional_integer("num_target_layers"),
        acceptance=tuple(_read_figures(ConfigFields(entry, f"{section.source}.acceptance")) for entry in entries),
        acceptance_prior=_read_prior(section, "acceptance_prior"),
        acceptance_prior_sampled=_read_prior(section, "acceptance_prior_sampled"),
        quantization=_read_quantization(section),
        provenance={} if provenance is None else section.value("provenance"),
    )
    section.refuse_unread()
    return metadata


def metadata_settings(metadata: DraftMetadata) -> dict[str, Any]:
    """The section `aquiline` that `read_draft_metadata` reads; {} where there is nothing to say.

    Raises:
        InvalidParameterError: a share outside 0 to 1, an unknown quantization, or provenance that JSON cannot hold.
    """
    if metadata.quantization not in ("", *QUANTIZATIONS):
        raise InvalidParameterError(
            f"quantization is {metadata.quantization!r}; it must be {' or '.join(QUANTIZATIONS)}, or empty"
        )
    shares = [figure for figures in metadata.acceptance for figure in figures.conditional_per_position]
    priors = (metadata.acceptance_prior, metadata.acceptance_prior_sampled)
    for share in [*shares, *(share for prior in priors for ranks in prior for share in ranks)]:
        if not 0.0 <= share <= 1.0:
            raise InvalidParameterError(f"a share of accepted tokens is {share!r}; it must be from 0 to 1")
    try:
        json.dumps(metadata.provenance, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(
            f"provenance cannot be written as JSON ({error}); use texts, finite numbers, lists and objects"
        ) from None
    settings = {
        "target": metadata.target,
        "num_target_layers": metadata.num_target_layers,
        "acceptance": [
            {
                "prompts": figures.prompts,
                "temperature": figures.temperature,
                "conditional_per_position": list(figures.conditional_per_position),
            }
            for figures in metadata.acceptance
        ],
        "acceptance_prior": _prior_settings(metadata.acceptance_prior),
        "acceptance_prior_sampled": _prior_settings(metadata.acceptance_prior_sampled),
        "quantization": metadata.quantization,
        "provenance": dict(metadata.provenance),
    }
    return {name: value for name, value in settings.items() if value}


def _read_figures(fields: ConfigFields) -> AcceptanceFigures:
    figures = AcceptanceFigures(
        prompts=fields.text("prompts"),
        temperature=fields.number("temperature", 0.0, above=-1e-9),
        conditional_per_position=_shares(fields.value("conditional_per_position"), fields, "conditional_per_position"),
    )
    fields.refuse_unread()
    return figures


def _read_quantization(section: ConfigFields) -> str:
    quantization = section.text("quantization", "")
    if quantization not in ("", *QUANTIZATIONS):
        raise section.wrong("quantization", f"it must be {' or '.join(QUANTIZATIONS)}")
    return quantization


def _prior_settings(prior: tuple[tuple[float, ...], ...]) -> dict[str, Any] | None:
    return {"depth_rank": [list(ranks) for ranks in prior]} if prior else None


def _read_prior(section: ConfigFields, name: str) -> tuple[tuple[float, ...], ...]:
    """Shares by depth and rank; none where the section has no such entry."""
    fields = section.section(name)
    if fields is None:
        return ()
    levels = fields.value("depth_rank")
    if not isinstance(levels, list):
        raise fields.wrong("depth_rank", "it must be a list with a list of shares for each depth")
    fields.refuse_unread()
    return tuple(_shares(level, fields, "depth_rank") for level in levels)


def _shares(values: Any, fields: ConfigFields, name: str) -> tuple[float, ...]:
    is_list = isinstance(values, list) and bool(values)
    if not is_list or not all(type(value) in (int, float) and 0 <= value <= 1 for value in values):
        raise ModelFormatError(f"{fields.source}: {name} must hold lists of shares from 0 to 1")
    return tuple(map(float, values))
