"""Speculative decoding on a target whose logits depend on the last token only, so that every law has a closed form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aquiline.engine.sample import Accepted, Sampler
from aquiline.engine.sampling_inputs import SamplingInputs
from aquiline.engine.tree import DraftTree
from aquiline.kernels.reference.sampling import LogitRules, largest
from aquiline.kernels.sampling_kernels import LogitRows


@dataclass(frozen=True)
class ToyDecoder:
    """A target and a draft that are tables, and full trees with `branching[i]` children per node of level i.

    Attributes:
        target: # [vocab, vocab] float32, logits of the next token by last token.
        draft: # [vocab, draft_vocab] float32
        draft_to_target_ids: # [draft_vocab] int64, or None.
    """

    sampler: Sampler
    target: Tensor
    draft: Tensor
    branching: tuple[int, ...] = ()
    draft_to_target_ids: Tensor | None = None

    def step(self, inputs: SamplingInputs, last_tokens: Tensor, positions: Tensor) -> Accepted:
        """One step for all requests.

        Args:
            last_tokens: [num_reqs] int64, the last known token (the root) of every request.
            positions: [num_reqs] int64, the position it sits at.
        """
        tree, paths = self.grow(inputs, last_tokens, positions)
        rows = self.logit_rows(inputs, tree, paths, positions)
        return self.sampler.accept(inputs, tree if self.branching else None, rows)

    def logit_rows(self, inputs: SamplingInputs, tree: DraftTree, paths: Tensor, positions: Tensor) -> LogitRows:
        """What the target says at every node; arguments as `grow` takes and returns them."""
        num_reqs, num_nodes = tree.tokens.shape
        row_to_request = torch.arange(num_reqs).repeat_interleave(num_nodes)
        drawn_positions = (positions.unsqueeze(1) + 1 + tree.depths).flatten()
        return LogitRows(
            logits=self.target[tree.tokens.flatten()],
            row_to_request=row_to_request,
            node_rows=torch.arange(num_reqs * num_nodes).view(num_reqs, num_nodes),
            positions=drawn_positions,
            output_lengths=drawn_positions - inputs.prompt_lengths[row_to_request],
            path_tokens=paths.reshape(num_reqs * num_nodes, -1) if self.branching else None,
        )

    def grow(self, inputs: SamplingInputs, last_tokens: Tensor, positions: Tensor) -> tuple[DraftTree, Tensor]:
        """The tree, and the tokens from below the root to each node: [num_reqs, num_nodes, depth], padded with -1."""
        num_reqs, depth = len(last_tokens), len(self.branching)
        tokens, parents, depths = [last_tokens], [-1], [0]
        paths = [torch.full((num_reqs, depth), -1)]
        log_probs = []
        frontier = [0]
        for level, width in enumerate(self.branching):
            grown = []
            for node in frontier:
                proposal = self.sampler.propose_scores(
                    inputs,
                    self.draft[tokens[node]],
                    torch.arange(num_reqs),
                    positions + level + 1,
                    self.draft_to_target_ids,
                    paths[node],
                )
                if proposal.log_probs is not None:
                    log_probs.append(proposal.log_probs)
                children = largest(proposal.scores, width)  # [num_reqs, width]
                for rank in range(width):
                    child = children[:, rank]
                    token = child if self.draft_to_target_ids is None else self.draft_to_target_ids[child]
                    grown.append(len(tokens))
                    tokens.append(token)
                    parents.append(node)
                    depths.append(level + 1)
                    path = paths[node].clone()
                    path[:, level] = token
                    paths.append(path)
            frontier = grown
        log_probs += [torch.full_like(log_probs[0], torch.nan)] * len(frontier) if log_probs else []
        tree = DraftTree(
            tokens=torch.stack(tokens, dim=1),
            parents=torch.tensor(parents).expand(num_reqs, -1),
            depths=torch.tensor(depths).expand(num_reqs, -1),
            is_valid=torch.ones(num_reqs, len(tokens), dtype=torch.bool),
            max_depth=depth,
            max_children=max(self.branching, default=0),
            draft_log_probs=torch.stack(log_probs, dim=1) if log_probs else None,
            draft_to_target_ids=self.draft_to_target_ids,
        )
        return tree, torch.stack(paths, dim=1)


def first_tokens(decoder: ToyDecoder, inputs: SamplingInputs, first: int, length: int) -> Tensor:
    """The first `length` tokens after `first` of every request: [num_reqs, length] int64."""
    num_reqs = inputs.num_reqs
    width = length + len(decoder.branching)
    history = torch.full((num_reqs, width), -1)
    done = torch.zeros(num_reqs, dtype=torch.int64)
    last = torch.full((num_reqs,), first)
    places = torch.arange(len(decoder.branching) + 1)
    for _ in range(length):
        accepted = decoder.step(inputs, last, inputs.prompt_lengths - 1 + done)
        columns = (done.unsqueeze(1) + places).clamp(max=width - 1)
        is_new = (accepted.token_ids >= 0) & (done < length).unsqueeze(1)
        history.scatter_(1, columns, torch.where(is_new, accepted.token_ids, history.gather(1, columns)))
        num_new = torch.where(done < length, accepted.num_accepted + 1, 0)
        last = torch.where(num_new > 0, accepted.bonus, last)
        done += num_new
    return history[:, :length]


def many_requests(num_reqs: int, rules: LogitRules, prompt_length: int = 3) -> SamplingInputs:
    """The inputs of many requests that differ in their seed only."""
    return SamplingInputs(
        rules=rules,
        seeds=torch.arange(num_reqs) + 1000,
        sample_indices=torch.zeros(num_reqs, dtype=torch.int64),
        prompt_lengths=torch.full((num_reqs,), prompt_length),
        any_greedy=False,
        max_logprobs=None,
    )
