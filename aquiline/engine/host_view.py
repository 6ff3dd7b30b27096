"""The one moment in which the host reads what a step decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from aquiline.engine.commit import AcceptedRun, CommittedRequest
from aquiline.engine.inputs import StepLayout
from aquiline.engine.sample import Accepted
from aquiline.engine.step_trace import StepFacts
from aquiline.engine.trace import TreeTrace
from aquiline.engine.tree import DraftTree
from aquiline.kernels.reference.sampling import TokenLogProbs
from aquiline.request import TokenLogprob


def accepted_runs(step: StepLayout, tree: DraftTree | None, accepted: Accepted) -> dict[str, AcceptedRun]:
    """What every drawing request of the step may commit, by request id."""
    nodes, token_ids = accepted.nodes.tolist(), accepted.token_ids.tolist()
    num_accepted = accepted.num_accepted.tolist()
    num_valid = [1] * len(step.drawing) if tree is None else tree.is_valid.sum(dim=1).tolist()
    firsts = _first_lookup_nodes(step, tree)
    is_valid = None if tree is None or tree.grown_counts is None else tree.is_valid.tolist()
    runs = {}
    for index, scheduled in enumerate(step.drawing):
        request, count = scheduled.request, num_accepted[index]
        logprobs: tuple[TokenLogprob, ...] = ()
        if request.params.logprobs is not None:
            assert accepted.logprobs is not None
            first = index * len(token_ids[index])
            wanted = token_ids[index][: count + 1]
            logprobs = tuple(token_logprobs(accepted.logprobs, first, wanted, request.params.logprobs))
        runs[request.request_id] = AcceptedRun(
            nodes=tuple(nodes[index][:count]),
            token_ids=tuple(token_ids[index][: count + 1]),
            logprobs=logprobs,
            num_draft_tokens=num_valid[index] - 1,
            num_lookup_tokens=0 if is_valid is None else sum(is_valid[index][firsts[index] :]),
            first_lookup_node=firsts[index],
        )
    return runs


def _first_lookup_nodes(step: StepLayout, tree: DraftTree | None) -> Sequence[int]:
    """The node from which on those of each drawing request were looked up; one behind the last where none was."""
    if tree is None or tree.grown_counts is None:
        return [1 if tree is None else tree.num_nodes] * len(step.drawing)
    return tree.grown_counts


def token_logprobs(figures: TokenLogProbs, first: int, token_ids: Sequence[int], num_top: int) -> list[TokenLogprob]:
    """Rows `first ..` of the figures as records, one for each of `token_ids`."""
    rows = slice(first, first + len(token_ids))
    log_probs, ranks = figures.log_probs[rows].tolist(), figures.ranks[rows].tolist()
    top_ids, top_log_probs = figures.top_ids[rows].tolist(), figures.top_log_probs[rows].tolist()
    return [
        TokenLogprob(
            token_id,
            log_probs[index],
            ranks[index],
            tuple(zip(top_ids[index][:num_top], top_log_probs[index][:num_top], strict=True)),
        )
        for index, token_id in enumerate(token_ids)
    ]


def tree_traces(
    step_number: int,
    step: StepLayout,
    tree: DraftTree | None,
    accepted: Accepted,
    committed: dict[str, tuple[int, ...]],
) -> list[TreeTrace]:
    """One record for every drawing request; a request without a tree shows its root alone.

    Args:
        committed: token ids that the step already appended to each request, by request id.
    """
    traces = []
    drawn = accepted.drawn.tolist()
    firsts = _first_lookup_nodes(step, tree)
    for index, scheduled in enumerate(step.drawing):
        request_id = scheduled.request.request_id
        root = scheduled.request.token_ids[-1 - len(committed[request_id])]
        kept, parents, tokens = [0], [-1], [root]
        if tree is not None:
            kept = _true_places(tree.is_valid[index])
            number = {node: place for place, node in enumerate(kept)}
            all_parents, all_tokens = tree.parents[index].tolist(), tree.tokens[index].tolist()
            parents = [-1 if node == 0 else number[all_parents[node]] for node in kept]
            tokens = [all_tokens[node] for node in kept]
        accepted_nodes = [node for node in accepted.nodes[index].tolist() if node >= 0]
        lookup_nodes = [place for place, node in enumerate(kept) if node >= firsts[index]]
        traces.append(
            TreeTrace(
                request_id=request_id,
                step=step_number,
                tokens=tuple(tokens),
                parents=tuple(parents),
                drawn_tokens=tuple(drawn[index][node] for node in kept),
                accepted_nodes=tuple(kept.index(node) for node in accepted_nodes),
                committed_token_ids=committed[request_id],
                lookup_nodes=tuple(lookup_nodes),
            )
        )
    return traces


def step_facts(
    step_number: int,
    step: StepLayout,
    runs: Mapping[str, AcceptedRun],
    committed: Sequence[CommittedRequest],
    num_waiting: int,
) -> StepFacts:
    """How large a step was and what came of it.

    Args:
        num_waiting: requests that were not in the step.
    """
    return StepFacts(
        step=step_number,
        num_requests=len(step.ordered),
        num_waiting=num_waiting,
        num_rows=sum(map(step.num_rows, step.ordered)),
        num_prefill_rows=sum(scheduled.num_new_tokens for scheduled in step.prefill_requests),
        num_draft_tokens=sum(run.num_draft_tokens for run in runs.values()),
        num_lookup_tokens=sum(run.num_lookup_tokens for run in runs.values()),
        num_committed_tokens=sum(len(item.token_ids) for item in committed),
    )


def _true_places(flags: Tensor) -> list[int]:
    return [place for place, flag in enumerate(flags.tolist()) if flag]
