"""What the code that trains a head expects of it, along texts of the target: the counterpart of `teacher_forced`.

The same head runs here through the differentiable network, in PyTorch and the dtype of the run, and there on the
kernels that serve it. What differs is rounding, and the draft's quantisation, unless it was trained for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from aquiline.models.loading import load_draft
from aquiline.models.model_config import LlamaConfig
from aquiline.training.examples import TrainingExample
from aquiline.training.network import DraftNetwork, FrozenWeights
from aquiline.training.packing import make_pack
from aquiline.training.settings import ServedQuantization
from aquiline.training.teacher_forced import WrittenText, ranks_of
from aquiline.training.unrolling import unroll
from aquiline.training.walk import RankedText


@torch.no_grad()
def rank_by_training(
    head: Path,
    target: LlamaConfig,
    frozen: FrozenWeights,
    texts: Sequence[WrittenText],
    max_depth: int,
    quantization: ServedQuantization = "none",
) -> list[RankedText]:
    """Ranks of the right tokens below every output token, from training-time test.

    Worked example: the row that pairs the feature of position 6 with the token at 7 is trained at step i from the token
    at 8 + i; where the answer begins at position 7, it is the row of output token number 0.

    Args:
        texts: with their features.
        quantization: for which the head was trained.
    """
    loaded = load_draft(head, target, frozen.embedding.dtype)
    weights = {name: tensor for name, tensor in loaded.tensors.items() if name != "draft_to_target_ids"}
    network = DraftNetwork(loaded.config, weights, frozen, [], quantization)
    draft_ids = torch.full((target.vocab_size,), -1)
    draft_ids[loaded.tensors["draft_to_target_ids"]] = torch.arange(loaded.config.draft_vocab_size)
    return [_rank_text(network, draft_ids, text, max_depth) for text in texts]


def _rank_text(network: DraftNetwork, draft_ids: torch.Tensor, text: WrittenText, max_depth: int) -> RankedText:
    num_roots = sum(text.num_depths(root) > 0 for root in range(text.num_output_tokens))
    if num_roots <= 0:
        return RankedText(text.category, ())
    assert text.features is not None
    is_answer = [position >= text.num_prompt_tokens for position in range(len(text.token_ids))]
    pack = make_pack([TrainingExample(text.token_ids, tuple(is_answer))], [0], len(text.token_ids))
    tokens, weights = torch.tensor(text.token_ids), network.used_weights()
    ranks: list[list[int]] = [[] for _ in range(num_roots)]
    for depth, step in enumerate(unroll(network, weights, pack, text.features.to(network.dtype), max_depth)):
        logits = torch.nn.functional.linear(step.states.head_inputs, network.head(weights)).float()
        found = ranks_of(logits, draft_ids[tokens[step.rows + 2 + depth]]).tolist()
        for row, rank in zip(step.rows.tolist(), found, strict=True):
            root = row + 1 - text.num_prompt_tokens
            if depth < text.num_depths(root):
                ranks[root].append(rank)
    return RankedText(text.category, tuple(map(tuple, ranks)))
