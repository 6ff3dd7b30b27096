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
from aquiline.kernels.reference.accept import AcceptedPaths, accept_multi_round
from aquiline.kernels.reference.keyed_step import ReferenceSampling, committed_tokens, row_chunks, row_places
from aquiline.kernels.reference.noise import NoiseStream, gumbel, uniform
from aquiline.kernels.reference.sampling import (
    RowPlaces,
    TokenLogProbs,
    TokenMasks,
    adjust_logits,
    draw_tokens,
    log_probs_of,
    process_logits,
    scale_logits,
)
from aquiline.kernels.sampling_kernels import DrawnPaths, LogitRows, SamplingKernels


@dataclass(frozen=True)
class Accepted(DrawnPaths):
    """What a step draws and accepts; under the multi-round rule nothing is drawn at nodes off the accepted path.

    Attributes:
        logprobs: one row per entry of `token_ids`, so [num_reqs * (max_depth + 1), ...], rows of padding hold anything;
            None when no request asks.
    """

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
    """Draws tokens and accepts paths under one of the two rules.

    Args:
        kernels: draw under the keyed rule, and greedily under either; None: those of PyTorch.
    """

    def __init__(
        self, vocab_size: int, acceptance: AcceptanceRule = "keyed", kernels: SamplingKernels | None = None
    ) -> None:
        self.vocab_size = vocab_size
        self.acceptance = acceptance
        self.kernels = kernels or ReferenceSampling()

    def accept(self, inputs: SamplingInputs, tree: DraftTree | None, rows: LogitRows) -> Accepted:
        """Draw the next token at every node and follow the tree as far as it agrees.

        Args:
            tree: None for a step without speculation; each request then gets one token.
        """
        if tree is not None and self.acceptance == "multi_round" and inputs.any_random:
            paths = self._accept_multi_round(inputs, tree, rows)
        else:
            paths = self.kernels.accept(inputs, rows, tree)
        logprobs = None
        if inputs.max_logprobs is not None:
            logprobs = _path_log_probs(rows, paths.nodes, paths.token_ids, inputs.max_logprobs)
        return Accepted(paths.nodes, paths.num_accepted, paths.bonus, paths.token_ids, paths.drawn, logprobs)

    def propose_scores(
        self,
        inputs: SamplingInputs,
        draft_logits: Tensor,
        row_to_request: Tensor,
        positions: Tensor,
        draft_to_target_ids: Tensor | None,
        path_tokens: Tensor | None = None,
        masks: TokenMasks | None = None,
    ) -> Proposal:
        """Score the draft's tokens as children of the nodes that `draft_logits` belong to.

        The request's grammar, bans, bias, min_tokens, penalties and temperature apply to the draft too; top-k, top-p
        and min-p do not. Keyed: scores carry the very noise with which the target will draw. Multi-round: noise of its
        own. Requests with temperature 0 get no noise.

        Args:
            draft_logits: [num_rows, draft_vocab].
            row_to_request: [num_rows] int64.
            positions: [num_rows] int64, absolute position of the children: one more than that of the node.
            draft_to_target_ids: [draft_vocab] int64; None: the draft has the target's vocabulary.
            path_tokens: [num_rows, max_depth] int64 padded with -1, as in `LogitRows`; None: no row has draft tokens
                above it.
            masks: what grammars allow at every row; None: no row has one.
        """
        output_lengths = positions - inputs.prompt_lengths[row_to_request]
        places = RowPlaces(row_to_request, output_lengths, path_tokens, draft_to_target_ids, masks)
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
        confidence = confidence.masked_fill(confidence.isnan(), -torch.inf)  # a NaN would rank above its parent
        return Proposal(scores, confidence, log_probs)

    def _accept_multi_round(self, inputs: SamplingInputs, tree: DraftTree, rows: LogitRows) -> DrawnPaths:
        """Paths under the multi-round rule, and the tokens drawn along them; greedy requests follow their argmax."""
        assert tree.draft_log_probs is not None, "the multi-round rule needs the draft's probabilities"
        parts = [
            torch.softmax(process_logits(rows.logits[part], inputs.rules, row_places(rows, part)), dim=-1)
            for part in row_chunks(rows.logits)
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
        bonus = torch.where(has_children, bonus, self.kernels.draw(inputs, _root_rows(rows)))
        paths = AcceptedPaths(walk.nodes, walk.num_accepted, bonus)
        random = DrawnPaths(
            paths.nodes, paths.num_accepted, bonus, committed_tokens(tree, paths), _drawn_on_path(tree, paths)
        )
        if not inputs.any_greedy:
            return random
        greedy_inputs = replace(inputs, rules=replace(inputs.rules, temperatures=None))
        greedy = self.kernels.accept(greedy_inputs, rows, tree)
        is_greedy = inputs.is_greedy  # [num_reqs]
        return DrawnPaths(
            torch.where(is_greedy.unsqueeze(1), greedy.nodes, random.nodes),
            torch.where(is_greedy, greedy.num_accepted, random.num_accepted),
            torch.where(is_greedy, greedy.bonus, random.bonus),
            torch.where(is_greedy.unsqueeze(1), greedy.token_ids, random.token_ids),
            torch.where(is_greedy.unsqueeze(1), greedy.drawn, random.drawn),
        )


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
        None if rows.masks is None else TokenMasks(rows.masks.bits, rows.masks.rows[roots]),
    )


def _parents_on_path(nodes: Tensor) -> Tensor:
    """The node that drew each committed token: the root, then the accepted nodes; 0 for padding.

    Worked example: accepted nodes 2 5 commit the tokens x2 x5 and the bonus y, drawn at the nodes 0 2 5.
    """
    return torch.nn.functional.pad(nodes, (1, 0)).clamp(min=0)  # [num_reqs, max_depth + 1]


def _drawn_on_path(tree: DraftTree, paths: AcceptedPaths) -> Tensor:
    """The committed tokens at the nodes that drew them, -1 elsewhere: [num_reqs, num_nodes]."""
    token_ids = committed_tokens(tree, paths)
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
