"""What drawing tokens asks of a backend, and the records that travel with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from aquiline.kernels.reference.noise import mix_key
from aquiline.kernels.reference.sampling import LogitRules, TokenMasks


@dataclass(frozen=True)
class SamplingRequests:
    """What drawing needs to know of the requests of a step.

    Attributes:
        rules: the logit processors.
        seeds, sample_indices: [num_reqs] int64, key of each request's noise.
        prompt_lengths: [num_reqs] int64, tokens before the output.
    """

    rules: LogitRules
    seeds: Tensor
    sample_indices: Tensor
    prompt_lengths: Tensor

    @property
    def num_reqs(self) -> int:
        return self.seeds.shape[0]

    def keys(self, row_to_request: Tensor, positions: Tensor, stream: int) -> Tensor:
        """Noise keys of rows that draw the tokens at `positions`: [num_rows, 2] int64."""
        return mix_key(self.seeds[row_to_request], self.sample_indices[row_to_request], positions, stream)


@dataclass(frozen=True)
class LogitRows:
    """The target's logits of a step, and where each row belongs.

    Attributes:
        logits: [num_rows, vocab] float32, raw
        row_to_request: [num_rows] int64, index into the step's `SamplingRequests`.
        node_rows: [num_reqs, num_nodes] int64, the row of each tree node; node 0 is the row of the last known token;
            -1 where a request has no such node. Without a tree: [num_reqs, 1].
        positions: [num_rows] int64, absolute position of the token that the row draws.
        output_lengths: [num_rows] int64, output tokens before that token.
        path_tokens: [num_rows, max_depth] int64 padded with -1, draft tokens from below the root down to the row's
            own node; None without a tree.
        masks: what grammars allow at every row; None: no row has one.
    """

    logits: Tensor
    row_to_request: Tensor
    node_rows: Tensor
    positions: Tensor
    output_lengths: Tensor
    path_tokens: Tensor | None = None
    masks: TokenMasks | None = None


class TreeNodes(Protocol):
    """What the walk reads of the trees of a step."""

    @property
    def tokens(self) -> Tensor:
        """Token of every node, [num_reqs, num_nodes] int64; node 0 is the root."""

    @property
    def parents(self) -> Tensor:
        """Parent of every node, [num_reqs, num_nodes] int64; -1 for the root and for absent nodes."""

    @property
    def max_depth(self) -> int:
        """Depth of the deepest node place."""


@dataclass(frozen=True)
class DrawnPaths:
    """What a step draws, and the path that it accepts of every request.

    Attributes:
        nodes: [num_reqs, max_depth] int64, accepted nodes below the root from the top down, padded with -1.
        num_accepted: [num_reqs] int64, accepted draft tokens, the bonus token not counted.
        bonus: [num_reqs] int64, the token drawn at the last accepted node.
        token_ids: [num_reqs, max_depth + 1] int64, accepted draft tokens, then the bonus token, padded with -1.
        drawn: [num_reqs, num_nodes] int64, the token drawn at every node; -1 where none was.
    """

    nodes: Tensor
    num_accepted: Tensor
    bonus: Tensor
    token_ids: Tensor
    drawn: Tensor


class SamplingKernels(Protocol):
    """Draws under the keyed rule. The token of a row depends on that row alone, whatever implements it."""

    def draw(self, requests: SamplingRequests, rows: LogitRows) -> Tensor:
        """The token that every row draws, [num_rows] int64."""

    def accept(self, requests: SamplingRequests, rows: LogitRows, tree: TreeNodes | None) -> DrawnPaths:
        """Draw a token at every node, then follow each tree from its root as far as it agrees.

        Args:
            tree: None for a step without speculation; each request then gets one token.
        """
