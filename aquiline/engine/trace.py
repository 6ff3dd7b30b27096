"""What one step did to one request, for people who want to look (`aquiline generate --explain`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TreeTrace:
    """The draft tree of one request in one step, and what became of it.

    Attributes:
        step: number of the engine step, from 0.
        tokens: token of every node; node 0 is the root.
        parents: parent of every node, -1 for the root; a parent's number is smaller than its children's.
        drawn_tokens: the token the target drew at every node.
        accepted_nodes: nodes of the accepted path from the root down, the root not included.
        committed_token_ids: what the user receives: the accepted tokens and the bonus token, cut by the stop rules.
        lookup_nodes: nodes that no draft model grew, but that were looked up.
    """

    request_id: str
    step: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    drawn_tokens: tuple[int, ...]
    accepted_nodes: tuple[int, ...]
    committed_token_ids: tuple[int, ...]
    lookup_nodes: tuple[int, ...] = ()
