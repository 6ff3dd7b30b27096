"""Which tokens a step commits: one token drawn per tree node, and the path through the tree that they accept.

Positions, worked example: tokens t0..t3 are computed and the root r is token number 4.

    node            r (root)   child x    child y of x
    sits at         4          5          6
    its row draws   5          6          7            <- `LogitRows.positions`, and the key of the noise

Under the keyed rule the token at a position depends on the history, the logits, the seed and the position alone, so the
tree decides only how many tokens a step commits (Gumbel coupling: Daliri, Musco and Suresh, arXiv 2408.07978).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aquiline.config import AcceptanceRule
from aquiline.engine.sampling_inputs import SamplingInputs
from aquiline.engine.tree import DraftTree
from aquiline.kernels.reference.accept import AcceptedPaths, accept_keyed, accept_multi_round
from aquiline.kernels.reference.noise import NoiseStream, gumbel, uniform
from aquiline.kernels.reference.sampling import (
    RowPlaces,
    TokenLogProbs,
    adjust_logits,
    draw_tokens,
    log_probs_of,
    process_logits,
    scale_logits,
)

NUMBERS_PER_CHUNK = 2**23


@dataclass(frozen=True)
class LogitRows:
    """The target's logits of a step, and where each row belongs.

    Attributes:
        logits: [num_rows, vocab] float32, raw
        row_to_request: [num_rows] int64, index into the step's `SamplingInputs`.
        node_rows: [num_reqs, num_nodes] int64, the row of each tree node; node 0 is the row of the last known token;
            -1 where a request has no such node. Without a tree: [num_reqs, 1].
        positions: [num_rows] int64, absolute position of the token that the row draws.
        output_lengths: [num_rows] int64, output tokens before that token.
        path_tokens: [num_rows, max_depth] int64 padded with -1, draft tokens from below the root down to the row's
            own node; None without a tree.
    """

    logits: Tensor
    row_to_request: Tensor
    node_rows: Tensor
    positions: Tensor
    output_lengths: Tensor
    path_tokens: Tensor | None = None


@dataclass(frozen=True)
class Accepted:
    """What a step draws and accepts.

    Attributes:
        nodes: [num_reqs, max_depth] int64, accepted nodes below the root from the top down, padded with -1.
        num_accepted: [num_reqs] int64, accepted draft tokens, the bonus token not counted.
        bonus: [num_reqs] int64, the token drawn at the last accepted node.
        token_ids: [num_reqs, max_depth + 1] int64, accepted draft tokens, then the bonus token, padded with -1.
        drawn: [num_reqs, num_nodes] int64, the token drawn at every node; -1 where none was: absent nodes, and under
            the multi-round rule nodes off the accepted path.
        logprobs: one row per entry of `token_ids`, so [num_reqs * (max_depth + 1), ...], rows of padding hold anything;
            None when no request asks.
    """

    nodes: Tensor
    num_accepted: Tensor
    bonus: Tensor
    token_ids: Tensor
    drawn: Tensor
    logprobs: TokenLogProbs | None


@dataclass(frozen=True)
class Proposal:
    """What the draft chooses children by.

    Attributes:
        scores: [num_rows, draft_vocab] float32; the children of a row are its largest scores, best first (`largest`).
            A score of -inf marks a token that is ruled out.
        log_confidence: [num_rows, draft_vocab] float32, how likely each child is to be accepted, for dynamic trees.
        log_probs: [num_rows, draft_vocab] float32, what the children were drawn from, to be kept as
            `DraftTree.draft_log_probs`; None under the keyed rule.
    """

    scores: Tensor
    log_confidence: Tensor
    log_probs: Tensor | None


class Sampler:
    """Draws tokens and accepts paths under one of the two rules."""

    def __init__(self, vocab_size: int, acceptance: AcceptanceRule = "keyed") -> None:
        self.vocab_size = vocab_size
        self.acceptance = acceptance

    def accept(self, inputs: SamplingInputs, tree: DraftTree | None, rows: LogitRows) -> Accepted:
        """Draw the next token at every node and follow the tree as far as it agrees.

        Args:
            tree: None for a step without speculation; each request then gets one token.
        """
        if tree is not None and self.acceptance == "multi_round" and inputs.any_random:
            paths, drawn = self._accept_multi_round(inputs, tree, rows)
        else:
            drawn = _at_nodes(self._draw(inputs, rows), rows.node_rows)  # [num_reqs, num_nodes]
            paths = _walk(tree, drawn)
        token_ids = _committed_tokens(tree, paths)
        logprobs = None
        if inputs.max_logprobs is not None:
            logprobs = _path_log_probs(rows, paths.nodes, token_ids, inputs.max_logprobs)
        return Accepted(paths.nodes, paths.num_accepted, paths.bonus, token_ids, drawn, logprobs)

    def propose_scores(
        self,
        inputs: SamplingInputs,
        draft_logits: Tensor,
        row_to_request: Tensor,
        positions: Tensor,
        draft_to_target_ids: Tensor | None,
        path_tokens: Tensor | None = None,
    ) -> Proposal:
        """Score the draft's tokens as children of the nodes that `draft_logits` belong to.

        The request's bans, bias, min_tokens, penalties and temperature apply to the draft too; top-k, top-p and min-p
        do not. Keyed: scores carry the very noise with which the target will draw. Multi-round: noise of its own.
        Requests with temperature 0 get no noise.

        Args:
            draft_logits: [num_rows, draft_vocab].
            row_to_request: [num_rows] int64.
            positions: [num_rows] int64, absolute position of the children: one more than that of the node.
            draft_to_target_ids: [draft_vocab] int64; None: the draft has the target's vocabulary.
            path_tokens: [num_rows, max_depth] int64 padded with -1, as in `LogitRows`; None: no row has draft tokens
                above it.
        """
        output_lengths = positions - inputs.prompt_lengths[row_to_request]
        places = RowPlaces(row_to_request, output_lengths, path_tokens, draft_to_target_ids)
        adjusted = adjust_logits(draft_logits.to(torch.float32), inputs.rules, places)  # [num_rows, draft_vocab]
        weights = scale_logits(adjusted, inputs.rules, row_to_request)
        is_multi_round = self.acceptance == "multi_round"
        log_probs = torch.log_softmax(weights, dim=-1) if is_multi_round else None
        scores = weights
        if inputs.rules.temperatures is not None:
            token_ids = draft_to_target_ids
            if token_ids is None:
                token_ids = torch.arange(draft_logits.shape[1], device=draft_logits.device)
            stream = NoiseStream.DRAFT if is_multi_round else NoiseStream.TARGET
            drawn_from = weights if log_probs is None else log_probs
            noisy = drawn_from + gumbel(inputs.keys(row_to_request, positions, stream), token_ids)
            scores = torch.where(inputs.is_greedy[row_to_request].unsqueeze(1), weights, noisy)
        confidence = torch.log_softmax(scores, dim=-1) if log_probs is None else log_probs
        return Proposal(scores, confidence, log_probs)

    def _draw(self, inputs: SamplingInputs, rows: LogitRows) -> Tensor:
        """The token that every row draws with its keyed noise, [num_rows] int64."""
        keys = inputs.keys(rows.row_to_request, rows.positions, NoiseStream.TARGET)  # [num_rows, 2]
        temperatures = inputs.rules.temperatures
        drawn = []
        for part in _chunks(rows.logits):
            places = _places(rows, part)
            processed = process_logits(rows.logits[part], inputs.rules, places)
            row_temperatures = None if temperatures is None else temperatures[places.row_to_request]
            drawn.append(draw_tokens(processed, row_temperatures, keys[part]))
        return torch.cat(drawn) if drawn else rows.row_to_request

    def _accept_multi_round(
        self, inputs: SamplingInputs, tree: DraftTree, rows: LogitRows
    ) -> tuple[AcceptedPaths, Tensor]:
        """Paths under the multi-round rule, and the tokens drawn along them; greedy requests follow their argmax."""
        assert tree.draft_log_probs is not None, "the multi-round rule needs the draft's probabilities"
        parts = [
            torch.softmax(process_logits(rows.logits[part], inputs.rules, _places(rows, part)), dim=-1)
            for part in _chunks(rows.logits)
        ]
        requests = torch.arange(inputs.num_reqs, device=rows.positions.device)
        first_positions = rows.positions[rows.node_rows[:, 0]]  # [num_reqs]
        walk = accept_multi_round(
            tree.tokens,
            tree.parents,
            rows.node_rows,
            torch.cat(parts),
            tree.draft_log_probs,
            _acceptance_uniforms(inputs, first_positions, tree),
            tree.draft_to_target_ids,
        )
        keys = inputs.keys(requests, first_positions + walk.num_accepted, NoiseStream.RESIDUAL)
        bonus = draw_tokens(walk.last_probs.log(), torch.ones_like(walk.last_probs[:, 0]), keys)
        # A request without draft tokens draws as in a step without trees: its neighbours must not change its answer.
        has_children = (tree.parents == 0).any(dim=1)  # [num_reqs]
        bonus = torch.where(has_children, bonus, self._draw(inputs, _root_rows(rows)))
        paths = AcceptedPaths(walk.nodes, walk.num_accepted, bonus)
        drawn = _drawn_on_path(tree, paths)
        if not inputs.any_greedy:
            return paths, drawn
        greedy = replace(inputs, rules=replace(inputs.rules, temperatures=None))
        greedy_drawn = _at_nodes(self._draw(greedy, rows), rows.node_rows)  # [num_reqs, num_nodes]
        greedy_paths = _walk(tree, greedy_drawn)
        is_greedy = inputs.is_greedy.unsqueeze(1)  # [num_reqs, 1]
        chosen = AcceptedPaths(
            torch.where(is_greedy, greedy_paths.nodes, paths.nodes),
            torch.where(inputs.is_greedy, greedy_paths.num_accepted, paths.num_accepted),
            torch.where(inputs.is_greedy, greedy_paths.bonus, paths.bonus),
        )
        return chosen, torch.where(is_greedy, greedy_drawn, drawn)


def _chunks(logits: Tensor) -> list[slice]:
    """Slices of a step's rows. No row's result depends on another, so the cut bounds memory and changes nothing."""
    num_rows, vocab_size = logits.shape
    rows_per_chunk = max(1, NUMBERS_PER_CHUNK // vocab_size)
    return [slice(start, start + rows_per_chunk) for start in range(0, num_rows, rows_per_chunk)]


def _places(rows: LogitRows, part: slice) -> RowPlaces:
    path_tokens = None if rows.path_tokens is None else rows.path_tokens[part]
    return RowPlaces(rows.row_to_request[part], rows.output_lengths[part], path_tokens)


def _root_rows(rows: LogitRows) -> LogitRows:
    """The rows of the roots alone, one per request."""
    roots = rows.node_rows[:, 0]
    return LogitRows(
        rows.logits[roots],
        rows.row_to_request[roots],
        torch.arange(len(roots), device=roots.device).unsqueeze(1),
        rows.positions[roots],
        rows.output_lengths[roots],
        None if rows.path_tokens is None else rows.path_tokens[roots],
    )


def _at_nodes(drawn_rows: Tensor, node_rows: Tensor) -> Tensor:
    """Per-row tokens arranged by tree node, -1 where a request has no such node: [num_reqs, num_nodes]."""
    return torch.where(node_rows >= 0, drawn_rows[node_rows.clamp(min=0)], -1)


def _walk(tree: DraftTree | None, drawn: Tensor) -> AcceptedPaths:
    if tree is None:
        return AcceptedPaths(drawn[:, :0], torch.zeros_like(drawn[:, 0]), drawn[:, 0])
    return accept_keyed(tree.tokens, tree.parents, drawn, tree.max_depth)


def _committed_tokens(tree: DraftTree | None, paths: AcceptedPaths) -> Tensor:
    """Accepted tokens, then the bonus token, padded with -1: [num_reqs, max_depth + 1]."""
    padded = torch.nn.functional.pad(paths.nodes, (0, 1), value=-1)  # [num_reqs, max_depth + 1]
    tokens = padded if tree is None else torch.where(padded >= 0, tree.tokens.gather(1, padded.clamp(min=0)), -1)
    places = torch.arange(padded.shape[1], device=padded.device)
    return torch.where(places == paths.num_accepted.unsqueeze(1), paths.bonus.unsqueeze(1), tokens)


def _parents_on_path(nodes: Tensor) -> Tensor:
    """The node that drew each committed token: the root, then the accepted nodes; 0 for padding.

    Worked example: accepted nodes 2 5 commit the tokens x2 x5 and the bonus y, drawn at the nodes 0 2 5.
    """
    return torch.nn.functional.pad(nodes, (1, 0)).clamp(min=0)  # [num_reqs, max_depth + 1]


def _drawn_on_path(tree: DraftTree, paths: AcceptedPaths) -> Tensor:
    """The committed tokens at the nodes that drew them, -1 elsewhere: [num_reqs, num_nodes]."""
    token_ids = _committed_tokens(tree, paths)
    # Padding is written to one more column, which is then cut off.
    columns = torch.where(token_ids >= 0, _parents_on_path(paths.nodes), tree.num_nodes)
    drawn = torch.full_like(torch.nn.functional.pad(tree.tokens, (0, 1)), -1)
    return drawn.scatter(1, columns, token_ids)[:, :-1]


def _acceptance_uniforms(inputs: SamplingInputs, first_positions: Tensor, tree: DraftTree) -> Tensor:
    """One number per depth and sibling rank, keyed by the child's position: [num_reqs, max_depth, max_children]."""
    device = first_positions.device
    positions = first_positions.unsqueeze(1) + torch.arange(tree.max_depth, device=device)  # [num_reqs, max_depth]
    requests = torch.arange(inputs.num_reqs, device=device).unsqueeze(1).expand_as(positions)
    keys = inputs.keys(requests.flatten(), positions.flatten(), NoiseStream.ACCEPT)
    numbers = uniform(keys, torch.arange(tree.max_children, device=device))
    return numbers.view(inputs.num_reqs, tree.max_depth, tree.max_children)


def _path_log_probs(rows: LogitRows, nodes: Tensor, token_ids: Tensor, num_top: int) -> TokenLogProbs:
    path_rows = rows.node_rows.gather(1, _parents_on_path(nodes)).clamp(min=0)  # [num_reqs, max_depth + 1]
    return log_probs_of(rows.logits.index_select(0, path_rows.flatten()), token_ids.flatten().clamp(min=0), num_top)
