"""A step's tokens and paths under the keyed rule, in PyTorch; see `aquiline.kernels.sampling_kernels`."""

from __future__ import annotations

import torch
from torch import Tensor

from aquiline.kernels.reference.accept import AcceptedPaths, accept_keyed
from aquiline.kernels.reference.noise import NoiseStream
from aquiline.kernels.reference.sampling import RowPlaces, TokenMasks, draw_tokens, process_logits
from aquiline.kernels.sampling_kernels import DrawnPaths, LogitRows, SamplingRequests, TreeNodes

NUMBERS_PER_CHUNK = 2**23


class ReferenceSampling:
    """`SamplingKernels` in PyTorch, on any device."""

    def draw(self, requests: SamplingRequests, rows: LogitRows) -> Tensor:
        """The token that every row draws, [num_rows] int64."""
        keys = requests.keys(rows.row_to_request, rows.positions, NoiseStream.TARGET)  # [num_rows, 2]
        temperatures = requests.rules.temperatures
        drawn = []
        for part in row_chunks(rows.logits):
            places = row_places(rows, part)
            processed = process_logits(rows.logits[part], requests.rules, places)
            row_temperatures = None if temperatures is None else temperatures[places.row_to_request]
            drawn.append(draw_tokens(processed, row_temperatures, keys[part]))
        return torch.cat(drawn) if drawn else rows.row_to_request

    def accept(self, requests: SamplingRequests, rows: LogitRows, tree: TreeNodes | None) -> DrawnPaths:
        """Draw a token at every node, then follow each tree from its root as far as it agrees."""
        drawn = _at_nodes(self.draw(requests, rows), rows.node_rows)  # [num_reqs, num_nodes]
        paths = AcceptedPaths(drawn[:, :0], torch.zeros_like(drawn[:, 0]), drawn[:, 0])
        if tree is not None:
            paths = accept_keyed(tree.tokens, tree.parents, drawn, tree.max_depth)
        return DrawnPaths(paths.nodes, paths.num_accepted, paths.bonus, committed_tokens(tree, paths), drawn)


def row_chunks(logits: Tensor) -> list[slice]:
    """Slices of a step's rows. No row's result depends on another, so the cut bounds memory and changes nothing."""
    num_rows, vocab_size = logits.shape
    rows_per_chunk = max(1, NUMBERS_PER_CHUNK // vocab_size)
    return [slice(start, start + rows_per_chunk) for start in range(0, num_rows, rows_per_chunk)]


def row_places(rows: LogitRows, part: slice) -> RowPlaces:
    """Where the rows of a chunk belong."""
    path_tokens = None if rows.path_tokens is None else rows.path_tokens[part]
    masks = None if rows.masks is None else TokenMasks(rows.masks.bits, rows.masks.rows[part])
    return RowPlaces(rows.row_to_request[part], rows.output_lengths[part], path_tokens, masks=masks)


def committed_tokens(tree: TreeNodes | None, paths: AcceptedPaths) -> Tensor:
    """Accepted tokens, then the bonus token, padded with -1: [num_reqs, max_depth + 1]."""
    padded = torch.nn.functional.pad(paths.nodes, (0, 1), value=-1)  # [num_reqs, max_depth + 1]
    tokens = padded if tree is None else torch.where(padded >= 0, tree.tokens.gather(1, padded.clamp(min=0)), -1)
    places = torch.arange(padded.shape[1], device=padded.device)
    return torch.where(places == paths.num_accepted.unsqueeze(1), paths.bonus.unsqueeze(1), tokens)


def _at_nodes(drawn_rows: Tensor, node_rows: Tensor) -> Tensor:
    """Per-row tokens arranged by tree node, -1 where a request has no such node: [num_reqs, num_nodes]."""
    return torch.where(node_rows >= 0, drawn_rows[node_rows.clamp(min=0)], -1)
