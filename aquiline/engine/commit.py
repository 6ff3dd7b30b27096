"""Apply one step's accepted paths to the requests: integers and text, all of a request or nothing of it.

Worked example, decoding: root r at position 4 is computed in this step, drafts x5 x6 x7, the target accepts x5 and x6
and draws y7 behind them.

    before    token_ids  t0..t3 r                 num_computed_tokens 4
    run       x5 x6 y7
    after     token_ids  t0..t3 r x5 x6 y7        num_computed_tokens 7      (r, x5, x6; y7 is the new root)

    cut at x5 by a stop rule: token_ids t0..t3 r x5, num_computed_tokens 5, and the request is finished
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aquiline.engine.finish import commit_tokens
from aquiline.engine.schedule import ScheduledRequest
from aquiline.engine.stream import TextStream
from aquiline.request import Request, TokenLogprob


@dataclass(frozen=True, slots=True)
class AcceptedRun:
    """What the target accepted of one request, as the host learns it.

    Attributes:
        nodes: accepted tree nodes from the root down, the root not included.
        token_ids: their tokens, then the bonus token; always one more than `nodes`.
        logprobs: one per token, or empty when none were asked for.
        num_draft_tokens: tree nodes that were verified, the root not included.
        num_lookup_tokens: those of them that no draft model grew, but that were looked up.
        first_lookup_node: the first of these; any number behind the last node where there are none.
    """

    nodes: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    num_draft_tokens: int
    num_lookup_tokens: int = 0
    first_lookup_node: int = 1


@dataclass(frozen=True, slots=True)
class CommittedRequest:
    """One request after its step.

    Attributes:
        token_ids: what the user receives from this step.
        computed_rows: rows of the request's share of the forward that became history, in position order, counted
            from its first row.
    """

    request: Request
    token_ids: tuple[int, ...]
    computed_rows: tuple[int, ...]


class Committer:
    """Applies runs to requests.

    Args:
        max_request_tokens: most tokens, prompt and output, that any request may reach.
    """

    def __init__(self, max_request_tokens: int) -> None:
        self._max_request_tokens = max_request_tokens

    def commit(
        self,
        scheduled_requests: Sequence[ScheduledRequest],
        runs: Mapping[str, AcceptedRun],
        streams: Mapping[str, TextStream],
    ) -> list[CommittedRequest]:
        """Apply every run; requests without one (unfinished prefills) only advance their computed tokens."""
        committed = []
        for scheduled in scheduled_requests:
            request_id = scheduled.request.request_id
            run = runs.get(request_id)
            if run is None:
                committed.append(self._advance(scheduled))
            else:
                committed.append(self._apply(scheduled, run, streams[request_id]))
        return committed

    def _advance(self, scheduled: ScheduledRequest) -> CommittedRequest:
        scheduled.request.num_computed_tokens += scheduled.num_new_tokens
        return CommittedRequest(scheduled.request, (), tuple(range(scheduled.num_new_tokens)))

    def _apply(self, scheduled: ScheduledRequest, run: AcceptedRun, stream: TextStream) -> CommittedRequest:
        request = scheduled.request
        token_ids = commit_tokens(request, stream, run.token_ids, self._max_request_tokens).token_ids
        rows = tuple(range(scheduled.num_new_tokens)) + run.nodes[: len(token_ids) - 1]
        request.num_computed_tokens += len(rows)
        request.output_logprobs += run.logprobs[: len(token_ids)]
        request.num_verify_steps += 1
        request.num_draft_tokens += run.num_draft_tokens
        received = run.nodes[: len(token_ids)]
        request.num_accepted_draft_tokens += len(received)
        request.num_lookup_tokens += run.num_lookup_tokens
        if run.num_lookup_tokens:
            request.num_accepted_lookup_tokens += sum(node >= run.first_lookup_node for node in received)
        return CommittedRequest(request, token_ids, rows)
