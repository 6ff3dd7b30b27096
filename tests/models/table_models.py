"""A target that looks its next token up in a table, and heads that copy it exactly.

The answer depends on the newest token, the one before it and the one REACH before it. A hidden state is a row of
one-hot codes, so that all have one length and RMSNorm is a known factor:

    LAST      the newest token                              written by the embedding; layer 1 adds 1 to the code
    BEFORE    the token before                              target: attention; heads: from the feature of that token
    EARLIER   the token REACH before the newest             target and heads: attention
    ANSWER    the token that follows                        the MLP, one neuron per entry of the table
    CONSTANT  1                                             gives queries and keys a fixed size

Attention is one-hot: query and key differ by a rotation alone, which cancels at one distance. So a head answers right
only with the right token, the right feature, rotary positions that fit, and true rows REACH slots back.

Only odd token ids are in use; an EAGLE-3 head has them as draft ids 0, 1, 2, ...
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from aquiline.models.eagle import EagleModel
from aquiline.models.llama import LlamaModel
from aquiline.models.loading import expected_draft_tensors, expected_target_tensors
from aquiline.models.model_config import EagleConfig, LlamaConfig, RopeConfig

NUM_CODES = 6
REACH = 3
TABLE_SEED = 126  # greedy answers then run on for long before they repeat
HIDDEN = 32
HEAD_DIM = 32
LAST, BEFORE, EARLIER, ANSWER = (slice(start, start + NUM_CODES) for start in range(0, 4 * NUM_CODES, NUM_CODES))
CONSTANT = 4 * NUM_CODES
USED_IDS = torch.arange(NUM_CODES) * 2 + 1
AUX_LAYER_IDS = (0, 1, 2)
PLUS_ONE = torch.eye(NUM_CODES).roll(1, dims=0)  # times a code: the code of the next number
ROPE = RopeConfig(theta=10000.0)

TARGET = LlamaConfig(
    vocab_size=2 * NUM_CODES,
    hidden_size=HIDDEN,
    intermediate_size=NUM_CODES**3,
    num_layers=3,
    num_heads=2,
    num_kv_heads=1,
    head_dim=HEAD_DIM,
    rms_norm_eps=1e-12,
    max_position=256,
    rope=ROPE,
)
EAGLE1 = EagleConfig("eagle1", replace(TARGET, num_layers=1), 2 * NUM_CODES, HIDDEN, has_own_head=False)
EAGLE3 = EagleConfig("eagle3", replace(TARGET, num_layers=1), NUM_CODES, HIDDEN, AUX_LAYER_IDS)


def table_target(confidence: float = 12.0, for_eagle1: bool = False) -> LlamaModel:
    """The target, as a reference model."""
    return LlamaModel(TARGET, target_tensors(confidence), () if for_eagle1 else AUX_LAYER_IDS)


def target_tensors(confidence: float = 12.0) -> dict[str, Tensor]:
    """The target. Attention looks back in layer 0 and at itself in layer 1; the MLP works in layer 2.

    Args:
        confidence: logit of the table's answer; that of any other token in use is 0.
    """
    tensors = _empty(expected_target_tensors(TARGET))
    tensors["model.embed_tokens.weight"][USED_IDS, :NUM_CODES] = torch.eye(NUM_CODES)
    tensors["model.embed_tokens.weight"][:, CONSTANT] = 1.0
    prefix = "model.layers.0.self_attn."
    _look_back(tensors, prefix, (1, REACH))
    _read(tensors, prefix, first_value=0, source=LAST, num_codes_on=2)
    _write(tensors, prefix, head=0, first_value=0, goal=BEFORE)
    _write(tensors, prefix, head=1, first_value=0, goal=EARLIER)
    prefix = "model.layers.1.self_attn."
    _look_back(tensors, prefix, (0, 0))
    _read(tensors, prefix, first_value=0, source=LAST, num_codes_on=4)
    _write(tensors, prefix, head=0, first_value=0, goal=LAST, codes=PLUS_ONE - torch.eye(NUM_CODES))
    _look_up(tensors, "model.layers.2.mlp.", PLUS_ONE)
    tensors["model.norm.weight"] /= _norm_factor(5)
    head = tensors["lm_head.weight"]
    head[USED_IDS, ANSWER] = confidence * torch.eye(NUM_CODES)
    head[USED_IDS - 1, CONSTANT] = -100.0
    return tensors


def eagle1_copy(target: LlamaModel) -> EagleModel:
    """An EAGLE-1 head, as a reference model."""
    return EagleModel(EAGLE1, eagle1_tensors(), target.embedding, target.head)


def eagle1_tensors() -> dict[str, Tensor]:
    """An EAGLE-1 head: fc makes LAST of the embedding and BEFORE of the feature's LAST.

    The feature is the target's last state, where LAST is one more than the embedding has it.
    """
    tensors = _empty(expected_draft_tensors(EAGLE1))
    combine = tensors["fc.weight"]
    combine[LAST, LAST] = PLUS_ONE
    combine[CONSTANT, CONSTANT] = 1.0
    combine[BEFORE, HIDDEN : HIDDEN + NUM_CODES] = PLUS_ONE.T
    prefix = "layers.0.self_attn."
    _look_back(tensors, prefix, (REACH, REACH))
    tensors[f"{prefix}v_proj.weight"][:NUM_CODES, LAST] = PLUS_ONE.T
    _write(tensors, prefix, head=1, first_value=0, goal=EARLIER)
    _look_up(tensors, "layers.0.mlp.", PLUS_ONE)
    tensors["draft_to_target_ids"] = torch.arange(TARGET.vocab_size)
    return tensors


def eagle3_copy(target: LlamaModel) -> EagleModel:
    """An EAGLE-3 head, as a reference model."""
    return EagleModel(EAGLE3, eagle3_tensors(target.head), target.embedding, target.head)


def eagle3_tensors(target_head: Tensor) -> dict[str, Tensor]:
    """An EAGLE-3 head: the residual stream starts as the feature, so attention on itself takes the old codes out.

    fc takes LAST and BEFORE from the lowest captured layer, EARLIER from the middle one, ANSWER from the highest. Only
    the lowest has LAST as the embedding writes it, and only the highest has ANSWER.
    """
    tensors = _empty(expected_draft_tensors(EAGLE3))
    combine = tensors["fc.weight"]
    for part, layer in ((LAST, 0), (BEFORE, 0), (EARLIER, 1), (ANSWER, 2)):
        combine[part, layer * HIDDEN + part.start : layer * HIDDEN + part.stop] = torch.eye(NUM_CODES)
    combine[CONSTANT, 2 * HIDDEN + CONSTANT] = 1.0
    prefix = "layers.0.self_attn."
    _look_back(tensors, prefix, (0, REACH))
    _read(tensors, prefix, first_value=0, source=LAST, num_codes_on=2)
    _write(tensors, prefix, head=0, first_value=0, goal=LAST)
    _write(tensors, prefix, head=1, first_value=0, goal=EARLIER)
    for number, part in enumerate((LAST, BEFORE, EARLIER, ANSWER), start=1):
        in_feature = slice(HIDDEN + part.start, HIDDEN + part.stop)
        _read(tensors, prefix, first_value=number * NUM_CODES, source=in_feature, num_codes_on=5)
        _write(tensors, prefix, head=0, first_value=number * NUM_CODES, goal=part, codes=-torch.eye(NUM_CODES))
    _write(tensors, prefix, head=0, first_value=NUM_CODES, goal=BEFORE)
    _look_up(tensors, "layers.0.mlp.", torch.eye(NUM_CODES))
    tensors["norm.weight"] /= _norm_factor(5)
    tensors["lm_head.weight"] = target_head[USED_IDS]
    tensors["draft_to_target_ids"] = USED_IDS
    return tensors


def table() -> Tensor:
    """Code of the next token by code of the last, the one before and the earlier one: [codes, codes, codes]."""
    return torch.randint(0, NUM_CODES, (NUM_CODES,) * 3, generator=torch.Generator().manual_seed(TABLE_SEED))


def continue_by_table(token_ids: list[int], num_tokens: int) -> list[int]:
    """What the target says after `token_ids`, greedily."""
    codes = [token_id // 2 for token_id in token_ids]
    for _ in range(num_tokens):
        codes.append(int(table()[codes[-1], codes[-2], codes[-1 - REACH]]))
    return [2 * code + 1 for code in codes[len(token_ids) :]]


def _empty(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Zero weights, and norms of weight 1."""
    return {name: torch.ones(shape) if "norm" in name else torch.zeros(shape) for name, shape in shapes.items()}


def _norm_factor(num_codes_on: int) -> float:
    """What RMSNorm multiplies a state by in which so many entries are 1."""
    return float((HIDDEN / num_codes_on) ** 0.5)


def _look_back(tensors: dict[str, Tensor], prefix: str, distances: tuple[int, int]) -> None:
    """Each query head sees one key: the one at its distance."""
    frequency = ROPE.theta ** (-torch.arange(HEAD_DIM // 2) * 2 / HEAD_DIM)
    turned = [torch.cat((torch.cos(d * frequency), -torch.sin(d * frequency))) for d in distances]
    tensors[f"{prefix}q_proj.weight"][:, CONSTANT] = 600.0 * torch.cat(turned)
    tensors[f"{prefix}k_proj.weight"][: HEAD_DIM // 2, CONSTANT] = 1.0


def _read(tensors: dict[str, Tensor], prefix: str, *, first_value: int, source: slice, num_codes_on: int) -> None:
    """Values take a code from a normalised input."""
    value = tensors[f"{prefix}v_proj.weight"]
    value[first_value : first_value + NUM_CODES, source] = torch.eye(NUM_CODES) / _norm_factor(num_codes_on)


def _write(
    tensors: dict[str, Tensor], prefix: str, *, head: int, first_value: int, goal: slice, codes: Tensor | None = None
) -> None:
    """What a head read goes into the residual stream, times the matrix `codes`."""
    column = head * HEAD_DIM + first_value
    matrix = torch.eye(NUM_CODES) if codes is None else codes
    tensors[f"{prefix}o_proj.weight"][goal, column : column + NUM_CODES] = matrix


def _look_up(tensors: dict[str, Tensor], prefix: str, last_codes: Tensor) -> None:
    """One neuron per entry of the table: its gate opens when all three codes are there.

    Args:
        last_codes: how LAST is written: its column c stands for code c.
    """
    factor = _norm_factor(4)
    for neuron, answer in enumerate(table().flatten().tolist()):
        last, rest = divmod(neuron, NUM_CODES**2)
        before, earlier = divmod(rest, NUM_CODES)
        gate = tensors[f"{prefix}gate_proj.weight"][neuron]
        gate[LAST] = 60.0 / factor * last_codes[:, last]
        gate[[BEFORE.start + before, EARLIER.start + earlier]] = 60.0 / factor
        gate[CONSTANT] = -2.5 * 60.0 / factor
        tensors[f"{prefix}up_proj.weight"][neuron, CONSTANT] = 1.0 / factor
        tensors[f"{prefix}down_proj.weight"][ANSWER.start + answer, neuron] = 1.0 / 30.0
