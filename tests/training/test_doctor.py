"""The doctor names the very mistake that a draft was given, and finds none where there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from aquiline.errors import PromptError
from aquiline.models.draft_metadata import AcceptanceFigures, DraftMetadata
from aquiline.models.draft_probe import ProbeHits, RowPairing, TargetReading, probe_draft, read_text
from aquiline.models.interfaces import DraftModel
from aquiline.models.llama import LlamaModel
from aquiline.models.loading import LoadedDraft, expected_target_tensors
from aquiline.models.tensor_shapes import ID_MAP
from aquiline.training import doctor
from aquiline.training.doctor import DraftReport, examine, layers_to_read
from aquiline.training.draft_mistakes import BorrowedWeights
from tests.models.table_models import (
    CONSTANT,
    EAGLE1,
    EAGLE3,
    HIDDEN,
    LAST,
    PLUS_ONE,
    TARGET,
    continue_by_table,
    eagle1_tensors,
    eagle3_tensors,
    target_tensors,
)
from tests.models.test_self_draft import random_prompt
from tests.tiny import random_tensors

NUM_TOKENS = 40
# Layers of the table's target lie between silent ones, so that a draft can be off by one either way.
AUX_LAYER_IDS = (1, 2, 3)
VOCAB = 40
DEEP = replace(TARGET, num_layers=5, vocab_size=VOCAB)
Break = Callable[[LoadedDraft], LoadedDraft]


def deep_target_tensors(norm_factor: float = 1.0) -> dict[str, Tensor]:
    """The table's target with a silent layer below and one above, and more tokens, none of which is ever likely.

    Args:
        norm_factor: of the final norm, which the head takes out again.
    """
    shapes = expected_target_tensors(DEEP)
    deep = {name: torch.ones(shape) if "norm" in name else torch.zeros(shape) for name, shape in shapes.items()}
    for name, tensor in target_tensors().items():
        parts = name.split(".")
        if parts[1] == "layers":
            deep[".".join([*parts[:2], str(int(parts[2]) + 1), *parts[3:]])] = tensor
        else:
            deep[name][: len(tensor)] = tensor
    deep["model.embed_tokens.weight"][:, CONSTANT] = 1.0
    deep["lm_head.weight"][TARGET.vocab_size :, CONSTANT] = -100.0
    deep["model.norm.weight"] *= norm_factor
    deep["lm_head.weight"] /= norm_factor
    return deep


def eagle3_draft() -> LoadedDraft:
    layers = replace(EAGLE3.layers, vocab_size=VOCAB)
    config = replace(EAGLE3, layers=layers, aux_layer_ids=AUX_LAYER_IDS)
    return LoadedDraft(config, eagle3_tensors(deep_target_tensors()["lm_head.weight"]))


def eagle1_draft() -> LoadedDraft:
    config = replace(EAGLE1, layers=replace(EAGLE1.layers, vocab_size=VOCAB), draft_vocab_size=VOCAB)
    return LoadedDraft(config, {**eagle1_tensors(), ID_MAP: torch.arange(VOCAB)})


def examined(draft: LoadedDraft, norm_factor: float = 1.0, num_tokens: int = NUM_TOKENS) -> DraftReport:
    tensors = deep_target_tensors(norm_factor)
    weights = BorrowedWeights(tensors["model.embed_tokens.weight"], tensors["lm_head.weight"])
    target = LlamaModel(DEEP, tensors, layers_to_read(draft, DEEP, weights))
    readings = []
    for seed in (23, 24):
        prompt = random_prompt(23, seed)
        text = [*prompt, *continue_by_table(prompt, num_tokens)]
        readings.append(read_text(target, text, len(prompt), torch.float32))
    return examine(draft, DEEP, weights, readings)


def with_tensor(draft: LoadedDraft, name: str, change: Callable[[Tensor], Tensor]) -> LoadedDraft:
    return replace(draft, tensors={**draft.tensors, name: change(draft.tensors[name])})


def with_config(draft: LoadedDraft, **changes: object) -> LoadedDraft:
    return replace(draft, config=replace(draft.config, **changes))  # type: ignore[arg-type]


def with_theta(draft: LoadedDraft, theta: float) -> LoadedDraft:
    layers = draft.config.layers
    return with_config(draft, layers=replace(layers, rope=replace(layers.rope, theta=theta)))


def with_own(draft: LoadedDraft, name: str) -> LoadedDraft:
    shape = (VOCAB, HIDDEN) if "embed" in name else tuple(draft.tensors[name].shape)
    own = random_tensors({name: shape}, seed=4)
    field = "has_own_embedding" if "embed" in name else "has_own_head"
    return replace(with_config(draft, **{field: True}), tensors={**draft.tensors, **own})


def swap_halves(draft: LoadedDraft, names: Sequence[str]) -> LoadedDraft:
    for name in names:
        draft = with_tensor(draft, name, lambda weight: weight.roll(weight.shape[-1] // 2, dims=-1))
    return draft


def reverse_blocks(weight: Tensor) -> Tensor:
    return torch.cat(weight.chunk(3, dim=-1)[::-1], dim=-1)


def made_for_higher_layers(weight: Tensor) -> Tensor:
    higher = weight.clone()
    higher[LAST, LAST] = PLUS_ONE.T
    return higher


INPUTS = [f"layers.0.self_attn.{name}_proj.weight" for name in "qkv"]
BREAKS: dict[str, Break] = {
    "layers_one_lower": lambda draft: with_config(draft, aux_layer_ids=(2, 3, 4)),
    # What layer 2 makes of the newest token is taken out again; the output of layer 1 has nothing to take out.
    "layers_one_higher": lambda draft: with_tensor(draft, "fc.weight", made_for_higher_layers),
    "features_reversed": lambda draft: with_tensor(draft, "fc.weight", reverse_blocks),
    "rope_theta_10000": lambda draft: with_theta(draft, 2.0),
    "norm_before_residual": lambda draft: with_config(draft, norm_before_residual=True),
    "embedding_of_target": lambda draft: with_own(draft, "embed_tokens.weight"),
    "head_of_target": lambda draft: with_own(draft, "lm_head.weight"),
    "halves_swapped": lambda draft: swap_halves(draft, INPUTS),
    "map_is_absolute": lambda draft: with_tensor(
        draft, "draft_to_target_ids", lambda ids: ids + torch.arange(len(ids))
    ),
    "map_of_another_head": lambda draft: with_tensor(draft, "draft_to_target_ids", lambda ids: torch.arange(len(ids))),
}


@pytest.mark.parametrize("make", [eagle1_draft, eagle3_draft], ids=["eagle1", "eagle3"])
def test_a_sound_draft_is_given_no_mistake(make: Callable[[], LoadedDraft]) -> None:
    report = examined(make())
    assert (report.verdict, report.cause) == ("fits", None) and report.is_sound
    assert report.agreement == {1: 1.0, 2: 1.0, 4: 1.0}
    assert report.acceptance_length == 1 + doctor.NUM_STEPS
    assert report.coverage == 1.0
    assert not [mistake.name for mistake in report.mistakes if mistake.is_clear]


@pytest.mark.parametrize("name", BREAKS)
def test_the_mistake_of_a_file_is_named(name: str) -> None:
    report = examined(BREAKS[name](eagle3_draft()))
    assert report.agreement[1] < 0.9
    assert report.verdict == "mistake found" and not report.is_sound
    assert report.cause is not None and report.cause.name == name
    assert report.cause.agreement == 1.0
    assert "\n" not in report.cause.meaning


def test_mistakes_of_an_eagle1_file_are_named() -> None:
    for name, broken in {
        "rope_theta_10000": with_theta(eagle1_draft(), 2.0),
        "halves_swapped": swap_halves(eagle1_draft(), ["fc.weight"]),
        "embedding_of_target": with_own(eagle1_draft(), "embed_tokens.weight"),
    }.items():
        report = examined(broken)
        assert report.cause is not None and report.cause.name == name


def test_a_head_made_for_features_before_the_final_norm_is_told_so() -> None:
    report = examined(eagle1_draft(), norm_factor=3.0)
    assert report.cause is not None and report.cause.name == "feature_before_final_norm"


PAIRINGS = {
    "token_of_the_feature": RowPairing(token=-1),
    "token_and_label_one_early": RowPairing(token=-1, label=-1),
    "features_one_behind": RowPairing(token=1, label=1),
    "label_one_early": RowPairing(label=-1),
    "label_one_late": RowPairing(label=1),
    "positions_one_lower": RowPairing(self_fed_position=-1),
    "positions_one_higher": RowPairing(self_fed_position=1),
}


@pytest.mark.parametrize("make", [eagle1_draft, eagle3_draft], ids=["eagle1", "eagle3"])
@pytest.mark.parametrize("name", PAIRINGS)
def test_a_shift_of_its_training_is_named(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], LoadedDraft], name: str
) -> None:
    """Whoever shifts everything the other way sees a sound draft as one that was trained with that shift."""
    shift = PAIRINGS[name]

    def shifted(
        draft: DraftModel,
        readings: Sequence[TargetReading],
        num_steps: int,
        dtype: torch.dtype,
        pairing: RowPairing,
    ) -> ProbeHits:
        opposite = RowPairing(
            pairing.token - shift.token,
            pairing.label - shift.label,
            pairing.self_fed_position - shift.self_fed_position,
        )
        return probe_draft(draft, readings, num_steps, dtype, opposite)

    monkeypatch.setattr(doctor, "probe_draft", shifted)
    report = examined(make())
    assert report.cause is not None and report.cause.name == name


def test_an_untrained_draft_is_at_chance() -> None:
    draft = eagle3_draft()
    shapes = {name: tuple(t.shape) for name, t in draft.tensors.items() if t.is_floating_point()}
    report = examined(replace(draft, tensors={**draft.tensors, **random_tensors(shapes, seed=2)}))
    assert report.verdict == "at chance" and report.cause is None


def claims(prompts: str, *shares: float) -> DraftMetadata:
    return DraftMetadata(acceptance=(AcceptanceFigures("warm", 1.0, (1.0,)), AcceptanceFigures(prompts, 0.0, shares)))


def worn_out(draft: LoadedDraft, share: float) -> LoadedDraft:
    """The draft with a share of its table lost."""

    def forget(weight: Tensor) -> Tensor:
        kept = torch.rand(weight.shape[-1], generator=torch.Generator().manual_seed(1)) >= share
        return weight * kept

    return with_tensor(draft, "layers.0.mlp.down_proj.weight", forget)


def test_a_draft_is_compared_with_its_own_figures() -> None:
    half = worn_out(eagle3_draft(), 0.4)
    found = examined(half).conditional_per_position
    assert 0.3 < found[0] < 0.9
    assert examined(half).verdict == "fits"
    same, other = doctor.PROBE_PROMPTS, "something else"
    assert examined(replace(half, metadata=claims(same, *found))).verdict == "fits"
    assert examined(replace(half, metadata=claims(same, 1.0, 1.0))).verdict == "below its figures"
    assert examined(replace(half, metadata=claims(other, min(1.0, 1.2 * found[0])))).verdict == "fits"
    report = examined(replace(worn_out(eagle3_draft(), 0.9), metadata=claims(other, 1.0, 1.0, 1.0, 1.0, 1.0)))
    assert report.claimed is not None and report.claimed.prompts == other
    assert report.verdict in ("below its figures", "at chance") and not report.is_sound


def test_texts_that_are_too_short_are_refused() -> None:
    with pytest.raises(PromptError, match="too few to judge"):
        examined(eagle3_draft(), num_tokens=doctor.NUM_STEPS)


def test_every_mistake_has_a_name_of_its_own() -> None:
    report = examined(with_own(eagle3_draft(), "embed_tokens.weight"))
    names = [mistake.name for mistake in report.mistakes]
    assert len(set(names)) == len(names)
    assert set(BREAKS) - {"rope_theta_10000"} | set(PAIRINGS) <= set(names)
