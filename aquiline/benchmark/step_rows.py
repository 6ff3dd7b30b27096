"""Rows of one request for forwards that are measured: a prompt, and a draft tree behind it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aquiline.kernels import CONTEXT_CHUNK, AttentionGroup, AttentionInputs
from aquiline.models.llama import ForwardRows


@dataclass(frozen=True)
class OneRequest:
    """A request whose logical position i lies in slot i; its draft nodes lie behind `context`.

    Attributes:
        context: committed tokens, the root included.
        vocab_size: of the token ids, which are random.
        first_position: 1 for a draft, whose cache has no row in slot 0.
    """

    context: int
    vocab_size: int
    first_position: int = 0

    def tokens(self, num_tokens: int) -> Tensor:
        """Random token ids, the same at every call."""
        return torch.randint(self.vocab_size, (num_tokens,), generator=torch.Generator().manual_seed(num_tokens))

    def prompt(self, num_tokens: int) -> ForwardRows:
        """Rows at the first `num_tokens` positions."""
        positions = torch.arange(self.first_position, self.first_position + num_tokens)
        group = AttentionGroup(0, _key_slots(int(positions[-1]) + 1), (positions + 1).unsqueeze(0))
        return ForwardRows(
            self.tokens(num_tokens), positions, positions.clone(), AttentionInputs((group,), self.first_position)
        )

    def tree(self, num_rows: int) -> ForwardRows:
        """Rows of a tree in which every node has two children, as far as there are rows.

        Worked example, context 4 and 6 rows:

            node        0 (root)  1  2  3  4  5
            parent      -         0  0  1  1  2
            position    3         4  4  5  5  5
            slot        3         4  5  6  7  8
        """
        paths: list[list[int]] = [[]]
        for node in range(1, num_rows):
            paths.append([*paths[(node - 1) // 2], self.context - 1 + node])
        capacity = max(map(len, paths)) + 1
        path_slots = torch.tensor([path + [0] * (capacity - len(path)) for path in paths]).unsqueeze(0)
        path_lens = torch.tensor([[len(path) for path in paths]])  # [1, num_rows]
        visible = torch.full((1, num_rows), self.context)
        group = AttentionGroup(0, _key_slots(self.context), visible, path_slots, path_lens)
        slots = torch.arange(self.context - 1, self.context - 1 + num_rows)
        attention = AttentionInputs((group,), self.first_position)
        return ForwardRows(self.tokens(num_rows), self.context - 1 + path_lens[0], slots, attention)


def _key_slots(num_positions: int) -> Tensor:
    context = -(-num_positions // CONTEXT_CHUNK) * CONTEXT_CHUNK
    # Entries past the last position point to any slot: nobody sees them.
    return torch.arange(context).clamp(max=num_positions - 1).unsqueeze(0)
