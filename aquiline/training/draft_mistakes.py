"""The ways in which a draft is put together wrongly, each as the draft that would be right if it were the one.

A mistake of a file or of its training rarely breaks anything: the draft runs, and foresees less. Run as it was meant,
it foresees more. So every mistake comes as a variant of the draft, to be probed beside the draft itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from aquiline.models.draft_probe import RowPairing
from aquiline.models.model_config import EagleConfig, LlamaConfig, RopeConfig, default_aux_layer_ids
from aquiline.models.tensor_shapes import HEAD, ID_MAP

DRAFT_EMBEDDING = "embed_tokens.weight"
# Bases that models of the Llama family have.
COMMON_THETAS = (10000.0, 100000.0, 500000.0, 1000000.0)
INPUT_PARTS = tuple(f"layers.0.self_attn.{name}_proj.weight" for name in "qkv")


@dataclass(frozen=True)
class DraftVariant:
    """A draft and how it is to be run.

    Attributes:
        tensors: by canonical name, float32.
        layer_ids: outputs of the target that are its features; () for the state after the final norm.
    """

    config: EagleConfig
    tensors: Mapping[str, Tensor]
    layer_ids: tuple[int, ...]
    pairing: RowPairing = field(default_factory=RowPairing)

    def with_config(self, **changes: Any) -> DraftVariant:
        return replace(self, config=replace(self.config, **changes))

    def with_rope(self, rope: RopeConfig) -> DraftVariant:
        return self.with_config(layers=replace(self.config.layers, rope=rope))

    def with_tensors(self, changes: Mapping[str, Tensor]) -> DraftVariant:
        return replace(self, tensors={**self.tensors, **changes})


@dataclass(frozen=True)
class Mistake:
    """One thing that may be wrong.

    Attributes:
        name: for programs.
        meaning: what is wrong when the variant foresees more, and how to mend it; on one line.
    """

    name: str
    meaning: str
    variant: DraftVariant


@dataclass(frozen=True)
class BorrowedWeights:
    """What a draft may take from its target, float32 [vocab, hidden] each."""

    embedding: Tensor
    head: Tensor


def possible_mistakes(draft: DraftVariant, target: LlamaConfig, weights: BorrowedWeights) -> tuple[Mistake, ...]:
    """Every mistake that can be tested on this draft."""
    found = [
        *_wrong_features(draft, target),
        *_wrong_pairings(draft),
        *_wrong_ropes(draft, target),
        *_wrong_options(draft),
        *_wrong_bindings(draft, weights),
        *_wrong_maps(draft),
    ]
    return tuple(found)


def _wrong_features(draft: DraftVariant, target: LlamaConfig) -> Iterator[Mistake]:
    ids, last = draft.layer_ids, target.num_layers - 1
    if draft.config.kind == "eagle1":
        yield Mistake(
            "feature_before_final_norm",
            "the features it was trained on are the target's last layer's output, before the final norm; EAGLE-1 heads "
            "read the state after it: train it on that",
            replace(draft, layer_ids=(last,)),
        )
        return
    lower, higher = tuple(i - 1 for i in ids), tuple(i + 1 for i in ids)
    hint = "eagle_config counts outputs, speculators the layers entered"
    if lower[0] >= 0:
        yield Mistake(
            "layers_one_lower",
            f"it was made for the outputs of layers {list(lower)}, and its file leads to {list(ids)}: {hint}, so "
            "lower each number by one",
            replace(draft, layer_ids=lower),
        )
    if higher[-1] <= last:
        yield Mistake(
            "layers_one_higher",
            f"it was made for the outputs of layers {list(higher)}, and its file leads to {list(ids)}: {hint}, so "
            "raise each number by one",
            replace(draft, layer_ids=higher),
        )
    if len(ids) > 1:
        yield Mistake(
            "features_reversed",
            "it was made for features from the highest layer to the lowest; reverse the blocks of columns of fc.weight",
            replace(draft, layer_ids=ids[::-1]),
        )
    default = default_aux_layer_ids(target.num_layers)
    if len(ids) == len(default) and default not in (ids, lower, higher) and default[0] >= 0:
        yield Mistake(
            "default_layers",
            f"it was made for the outputs of the default layers {list(default)}, and its file names {list(ids)}",
            replace(draft, layer_ids=default),
        )


def _wrong_pairings(draft: DraftVariant) -> Iterator[Mistake]:
    meanings = {
        "token_of_the_feature": (
            RowPairing(token=-1),
            "it was trained on each feature beside the token of the same position; a row must embed the next token",
        ),
        "token_and_label_one_early": (
            RowPairing(token=-1, label=-1),
            "it was trained to give the token that the target itself gives at a feature, one position early; shift ids "
            "and labels by one more",
        ),
        "features_one_behind": (
            RowPairing(token=1, label=1),
            "it was trained on features one position behind those of its tokens; pair the feature of position i with "
            "token i + 1",
        ),
        "label_one_early": (
            RowPairing(label=-1),
            "it gives back the token that a row embeds: it is untrained, or its labels were one position early",
        ),
        "label_one_late": (RowPairing(label=1), "it was trained on labels one position late"),
        "positions_one_lower": (
            RowPairing(self_fed_position=-1),
            "rows fed its own output were trained at rotary positions one lower than those they follow; let positions "
            "go on without a gap",
        ),
        "positions_one_higher": (
            RowPairing(self_fed_position=1),
            "rows fed its own output were trained at rotary positions one higher than those they follow; let positions "
            "go on without a gap",
        ),
    }
    for name, (pairing, meaning) in meanings.items():
        yield Mistake(name, meaning, replace(draft, pairing=pairing))


def _wrong_ropes(draft: DraftVariant, target: LlamaConfig) -> Iterator[Mistake]:
    own = draft.config.layers.rope
    if target.rope.kind != own.kind:
        yield Mistake(
            "rope_of_target",
            f"it was trained with the rotary settings of its target ({target.rope.kind}, rope_theta "
            f"{target.rope.theta:g}), and its file says {own.kind}, {own.theta:g}; copy them",
            draft.with_rope(target.rope),
        )
    for theta in sorted({*COMMON_THETAS, target.rope.theta} - {own.theta}):
        yield Mistake(
            f"rope_theta_{theta:g}",
            f"it was trained with rope_theta {theta:g}, and its file leads to {own.theta:g}; write {theta:g} there",
            draft.with_rope(replace(own, theta=theta)),
        )


def _wrong_options(draft: DraftVariant) -> Iterator[Mistake]:
    config = draft.config
    if config.kind == "eagle3":
        for name in ("norm_before_residual", "norm_output"):
            right = not getattr(config, name)
            yield Mistake(
                name,
                f"it was trained with {name} {str(right).lower()}, and its file leads to {str(not right).lower()}; "
                f"write {name}: {str(right).lower()}",
                draft.with_config(**{name: right}),
            )
    parts = INPUT_PARTS if config.kind == "eagle3" else ("fc.weight",)
    swapped = {part: torch.cat(draft.tensors[part].chunk(2, dim=-1)[::-1], dim=-1) for part in parts}
    yield Mistake(
        "halves_swapped",
        f"it was trained with the hidden state in front of the embedding; swap the halves of the columns of {parts[0]}"
        + (" and those of k and v" if len(parts) > 1 else ""),
        draft.with_tensors(swapped),
    )


def _wrong_bindings(draft: DraftVariant, weights: BorrowedWeights) -> Iterator[Mistake]:
    config = draft.config
    if config.layers.hidden_size != weights.embedding.shape[-1]:
        return
    if config.has_own_embedding:
        yield Mistake(
            "embedding_of_target",
            f"it was trained on its target's embedding, and the file brings another {DRAFT_EMBEDDING}; leave it out",
            draft.with_config(has_own_embedding=False),
        )
    if config.has_own_head:
        rows = weights.head[draft.tensors[ID_MAP]]
        yield Mistake(
            "head_of_target",
            f"it was trained with its target's head, and the file brings another {HEAD}; take the target's rows",
            draft.with_tensors({HEAD: rows}),
        )


def _wrong_maps(draft: DraftVariant) -> Iterator[Mistake]:
    target_ids, num_ids = draft.tensors[ID_MAP], draft.config.layers.vocab_size
    if len(target_ids) == num_ids:
        return
    stored = target_ids - torch.arange(len(target_ids))
    if bool((stored >= 0).all()) and bool((stored < num_ids).all()):
        yield Mistake(
            "map_is_absolute",
            "d2t of its file holds target ids, and it must hold offsets: subtract 0, 1, 2, ... from it",
            draft.with_tensors({ID_MAP: stored}),
        )


def map_of_similar_rows(
    draft: DraftVariant, weights: BorrowedWeights, draft_ids: Tensor, target_ids: Tensor
) -> Mistake | None:
    """The mistake that the map belongs to another head: a draft id gets the target id whose row of the head is nearest.

    Args:
        draft_ids, target_ids: those that matter, for all rows against all would take long; other draft ids are left
            without a token that matters.

    Returns:
        None where there is no reduced vocabulary, or head and target differ in width.
    """
    head, num_ids = draft.tensors.get(HEAD), draft.config.layers.vocab_size
    if head is None or len(head) == num_ids or head.shape[-1] != weights.head.shape[-1]:
        return None
    own, targets = torch.nn.functional.normalize(head, dim=-1), torch.nn.functional.normalize(weights.head, dim=-1)
    nearest_ids = (targets[target_ids] @ own.T).argmax(dim=-1)
    draft_ids = torch.tensor(sorted({*draft_ids.tolist(), *nearest_ids.tolist()}))
    found = (own[draft_ids] @ targets.T).argmax(dim=-1)
    is_spare = ~torch.isin(torch.arange(num_ids), torch.cat((found, target_ids)))
    if not bool(is_spare.any()):
        return None
    id_map = torch.full((len(head),), int(is_spare.nonzero()[0]))
    id_map[draft_ids] = found
    return Mistake(
        "map_of_another_head",
        "rows of its head are most like the target's rows of other tokens than d2t leads to: d2t is missing, empty or "
        "of another draft; write the one it was trained with",
        draft.with_tensors({ID_MAP: id_map}),
    )
