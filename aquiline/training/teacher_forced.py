"""What a draft expects along texts of the target, on the kernels that serve it: ranks of the right tokens.

Every output token is taken as the root of a tree whose accepted path is the text itself. One draft forward fills the
cache with rows from true features; then every depth is one forward over all roots together, each row fed with the
hidden state of the one above it.

Worked example, tokens t0..t5 of which t3, t4, t5 were written, three depths; j counts the self-fed rows of a root:

    root       row j of the root embeds    at rotary position    sees                             should propose
    t3 (j 0)   t3, hidden of h2            2                     slots 1..3                       t4
    t3 (j 1)   t4, hidden of row j 0       3                     slots 1..3, row 1                t5
    t4 (j 0)   t4, hidden of h3            3                     slots 1..4                       t5
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aquiline.engine.draft_inputs import FIRST_DRAFT_POSITION
from aquiline.engine.kv_pool import KVPool, MemoryKind
from aquiline.engine.slots import SlotLayout
from aquiline.kernels import CONTEXT_CHUNK, AttentionGroup, AttentionInputs
from aquiline.models.interfaces import DraftModel, TargetModel
from aquiline.models.llama import ForwardRows
from aquiline.training.walk import RankedText


@dataclass(frozen=True)
class WrittenText:
    """An answer of the target at temperature 0.

    Attributes:
        token_ids: prompt and answer.
        max_tokens: the limit under which it was written, which ends draft trees one token earlier.
        features: of every token but the last, [num_tokens - 1, feature_size]; None until they are computed.
    """

    category: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    max_tokens: int
    features: Tensor | None = None

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    def num_depths(self, root: int) -> int:
        """Depths below output token number `root` that can be committed.

        Worked example, 5 output tokens a b c d e under a limit of 6: below c stand d and e. Under a limit of 5, the
        bonus token fills the last place, and below c only d counts.
        """
        return min(self.num_output_tokens - 1, self.max_tokens - 2) - root


def compute_features(target: TargetModel, token_ids: Sequence[int], memory: MemoryKind) -> Tensor:
    """Features of all tokens but the last, [num_tokens - 1, feature_size]."""
    count = len(token_ids) - 1
    pool = KVPool(SlotLayout(1, count, 1, 0), target.config, None, memory)
    positions = torch.arange(count)
    group = AttentionGroup(0, _key_slots(count), (positions + 1).unsqueeze(0))
    rows = ForwardRows(torch.tensor(token_ids[:-1]), positions, positions.clone(), AttentionInputs((group,)))
    return target.forward(rows, pool.target_layers).features


def rank_text(draft: DraftModel, text: WrittenText, max_depth: int, memory: MemoryKind) -> RankedText:
    """Ranks of the right tokens below every output token that could grow a tree.

    Args:
        text: with its features.
        memory: kind of the draft's keys and values.
    """
    num_roots = sum(text.num_depths(root) > 0 for root in range(text.num_output_tokens))
    if num_roots <= 0:
        return RankedText(text.category, ())
    assert text.features is not None
    walk = _SelfFedWalk(draft, text, num_roots, memory)
    columns = [walk.ranks(depth) for depth in range(min(max_depth, text.num_depths(0)))]
    return RankedText(
        text.category,
        tuple(tuple(column[root] for column in columns[: text.num_depths(root)]) for root in range(num_roots)),
    )


class _SelfFedWalk:
    """Draft rows below all roots of a text, depth by depth.

    Slots: row j of the root at position p lies in slot j * num_tokens + p.
    """

    def __init__(self, draft: DraftModel, text: WrittenText, num_roots: int, memory: MemoryKind) -> None:
        assert text.features is not None
        self._draft = draft
        self._tokens = torch.tensor(text.token_ids)
        self._roots = text.num_prompt_tokens + torch.arange(num_roots)  # [num_roots] positions
        count = len(text.token_ids)
        self._layout = SlotLayout(max(2, text.num_depths(0)), count, 1, 0)
        self._layers = KVPool(self._layout, draft.config.layers, None, memory).target_layers
        self._draft_ids = torch.full((draft.config.layers.vocab_size,), -1)
        self._draft_ids[draft.draft_to_target_ids] = torch.arange(len(draft.draft_to_target_ids))
        slots = torch.arange(1, count)
        group = AttentionGroup(0, _key_slots(count), (slots + 1).unsqueeze(0))
        inputs = AttentionInputs((group,), FIRST_DRAFT_POSITION)
        rows = ForwardRows(self._tokens[1:], slots - 1, slots, inputs)
        states = draft.forward(rows, draft.combine_features(text.features), self._layers)
        self._head_inputs = states.head_inputs[self._roots - 1]
        self._hidden_states = states.hidden_states[self._roots - 1]

    def ranks(self, depth: int) -> list[int]:
        """Rank of the token `depth + 1` behind each root; called for depth 0, 1, ... in turn."""
        if depth > 0:
            self._feed(depth)
        wanted = self._draft_ids[self._behind(depth + 1)]  # [num_roots]
        return ranks_of(self._draft.logits(self._head_inputs), wanted).tolist()

    def _feed(self, depth: int) -> None:
        count, num_roots = self._layout.block_size, len(self._roots)
        own = self._roots.unsqueeze(1) + count * torch.arange(1, depth + 1)  # [num_roots, depth]
        group = AttentionGroup(
            0,
            _key_slots(count),
            (self._roots + 1).unsqueeze(0),
            own.unsqueeze(0),
            torch.full((1, num_roots), depth),
        )
        inputs = AttentionInputs((group,), FIRST_DRAFT_POSITION)
        rows = ForwardRows(self._behind(depth), self._roots + depth - 1, own[:, -1].contiguous(), inputs)
        states = self._draft.forward(rows, self._hidden_states, self._layers)
        self._head_inputs, self._hidden_states = states.head_inputs, states.hidden_states

    def _behind(self, distance: int) -> Tensor:
        """The token so far behind each root; past the end of the text any token, whose rank nobody reads."""
        return self._tokens[(self._roots + distance).clamp(max=len(self._tokens) - 1)]


def ranks_of(logits: Tensor, wanted: Tensor) -> Tensor:
    """How many tokens the draft prefers to the wanted one, ties to the lowest id: [num_rows] int64.

    Worked example, logits 3 5 5 1: ids 0, 1, 2, 3 have ranks 2, 0, 1, 3.

    Args:
        logits: [num_rows, draft_vocab].
        wanted: draft id of each row, [num_rows]; -1, which the draft does not have, gets the rank draft_vocab.
    """
    known = wanted.clamp_min(0).unsqueeze(1)
    own = logits.gather(1, known)
    is_before = (logits == own) & (torch.arange(logits.shape[1]) < known)
    ranks = ((logits > own) | is_before).sum(dim=1)
    return torch.where(wanted < 0, logits.shape[1], ranks)


def _key_slots(num_positions: int) -> Tensor:
    """Slot of every logical position, [1, context]: itself; entries past the last position are seen by nobody."""
    context = -(-num_positions // CONTEXT_CHUNK) * CONTEXT_CHUNK
    return torch.arange(context).clamp(max=num_positions - 1).unsqueeze(0)
