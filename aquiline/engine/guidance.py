"""Where every guided request stands in its grammar, and the masks of the rows that draw.

A matcher advances by committed tokens alone. For a tree it is moved down each node's own path and back: siblings may
have different continuations, so every node gets the mask of its own path.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy
import torch

from aquiline.config import GrammarConfig
from aquiline.engine.finish import abort
from aquiline.engine.grammar import CompiledGrammar, GrammarCompiler, Matcher, new_masks
from aquiline.engine.grammar_nodes import ForetoldRate, foretold_tokens, guided_tree
from aquiline.engine.grammar_time import OVERDUE, GrammarTime, GrammarVerdict
from aquiline.engine.host_tree import HostTree
from aquiline.engine.inputs import StepLayout
from aquiline.engine.lookup import LookupLimits
from aquiline.engine.row_worth import RowWorth
from aquiline.engine.stream import TextStream
from aquiline.engine.tree import DraftTree
from aquiline.errors import ConsistencyError, InternalError, InvalidParameterError
from aquiline.kernels.reference.sampling import TokenMasks
from aquiline.kernels.sampling_kernels import LogitRows
from aquiline.request import Request, SamplingParams


@dataclass(frozen=True)
class TreeNodes:
    """One request's tree as lists; node 0 is the root, parents come before their children, -1 for absent nodes."""

    tokens: Sequence[int]
    parents: Sequence[int]


MAX_KEPT_ROWS = 64


class MaskTable:
    """Masks of a step, one row after the other; the memory is kept from step to step."""

    def __init__(self, vocab_size: int) -> None:
        self._bits = new_masks(8, vocab_size)
        self._tensor = torch.from_numpy(self._bits)
        self._num_used = 0
        # What is built anew costs more than the masks: behind a forward nothing is left in the processor's caches.
        self._rows: dict[tuple[int, ...], torch.Tensor] = {}

    def clear(self) -> None:
        """Forget all masks."""
        self._num_used = 0

    def add(self, matcher: Matcher) -> int:
        """Write what may follow now; returns the number of the mask, -1 behind the end of the output."""
        if matcher.is_terminated:
            return -1
        if self._num_used == len(self._bits):
            self._bits = numpy.concatenate((self._bits, numpy.zeros_like(self._bits)))
            self._tensor = torch.from_numpy(self._bits)
        matcher.fill(self._bits, self._num_used)
        self._num_used += 1
        return self._num_used - 1

    def masks(self, rows: Sequence[int], device: torch.device) -> TokenMasks | None:
        """The masks written so far; None when there are none.

        Args:
            rows: number of the mask of every row of logits, -1 for none.
        """
        if not self._num_used:
            return None
        key = tuple(rows)
        numbers = self._rows.get(key)
        if numbers is None:
            if len(self._rows) == MAX_KEPT_ROWS:
                self._rows.clear()
            numbers = self._rows[key] = torch.tensor(rows, device=device)
        return TokenMasks(self._tensor if device.type == "cpu" else self._tensor.to(device), numbers)


class Guidance:
    """The guided requests of an engine.

    Args:
        compiler: None: no request can be guided.
        device: where masks are used.
        limits: what the grammar of a request may take of the steps.
    """

    def __init__(
        self,
        compiler: GrammarCompiler | None,
        vocab_size: int,
        device: torch.device,
        limits: GrammarConfig | None = None,
    ) -> None:
        self._compiler = compiler
        self._time = GrammarTime(limits or GrammarConfig())
        self._vocab_size = vocab_size
        self._device = device
        self._table = MaskTable(vocab_size)
        self._grammars: dict[str, CompiledGrammar] = {}
        self._matchers: dict[str, Matcher] = {}
        self._rate = ForetoldRate()
        # Tokens foretold for the step that runs, and whether each was one of several legal ones.
        self._foretold: dict[str, list[tuple[int, bool]]] = {}
        self._seconds = 0.0

    def take_seconds(self) -> float:
        """Time that grammars took since the last question."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - started

    @property
    def num_requests(self) -> int:
        """Guided requests that wait or run."""
        return len(self._grammars)

    def grammar_of(self, params: SamplingParams) -> CompiledGrammar | None:
        """The grammar that a request will follow; None without one. Any thread may ask, to have it compiled early.

        Raises:
            InvalidParameterError: a guide that cannot be followed.
        """
        if params.guided is None:
            return None
        if self._compiler is None:
            raise InvalidParameterError("guided needs the bytes of every token, and this model has no tokenizer")
        return self._compiler.compile(params.guided)

    def register(self, requests: Sequence[Request], grammar: CompiledGrammar | None) -> None:
        """Requests were added that follow a grammar, or none."""
        if grammar is not None:
            self._grammars.update({request.request_id: grammar for request in requests})

    def forget(self, request_id: str) -> None:
        """A request has ended; nothing happens when it is not guided."""
        self._grammars.pop(request_id, None)
        self._matchers.pop(request_id, None)
        self._foretold.pop(request_id, None)
        self._time.forget(request_id)

    def admit(self, request: Request) -> None:
        """Set up the matcher of a request that begins to run, from its output so far."""
        grammar = self._grammars.get(request.request_id)
        if grammar is not None:
            with self._time.taking(request.request_id):
                self._matchers[request.request_id] = _matcher_at(grammar, request)

    def release(self, request: Request) -> None:
        """Drop the matcher of a request that was preempted or has ended."""
        self._matchers.pop(request.request_id, None)
        self._foretold.pop(request.request_id, None)

    def commit(self, request: Request, token_ids: Sequence[int]) -> None:
        """Advance by the tokens that a step committed."""
        matcher = self._matchers.get(request.request_id)
        if matcher is None:
            return
        with self._timed():
            with self._time.taking(request.request_id):
                _advance(matcher, request, token_ids)
            for (foretold, is_guess), token_id in zip(
                self._foretold.pop(request.request_id, ()), token_ids, strict=False
            ):
                if is_guess:
                    self._rate.observe(foretold == token_id)
                if foretold != token_id:
                    break

    def known_nodes(
        self, request: Request, look_up: Callable[[], HostTree], limits: LookupLimits, worth: RowWorth
    ) -> HostTree:
        """What the request's grammar foretells, and of what is looked up what it allows."""
        matcher = self._matchers.get(request.request_id)
        if matcher is None:
            return look_up()
        with self._timed(), self._time.taking(request.request_id, is_for_drafts=True):
            foretold = foretold_tokens(matcher, self._rate.rate, limits, worth)
            self._foretold[request.request_id] = [(token_id, likely < 1.0) for token_id, likely in foretold]
        found = look_up()
        with self._timed(), self._time.taking(request.request_id, is_for_drafts=True):
            return guided_tree(matcher, foretold, found, limits)

    def guided(self, step: StepLayout, tree: DraftTree | None, rows: LogitRows) -> LogitRows:
        """The rows of a step with what grammars allow at each."""
        masks = self.masks(step, tree)
        return rows if masks is None else replace(rows, masks=masks)

    def masks(self, step: StepLayout, tree: DraftTree | None) -> TokenMasks | None:
        """Masks of every row that draws, in row order; None when no request of the step is guided.

        Args:
            tree: with a row for each of `step.drawing`; None: every request has its root alone.
        """
        if not self._matchers:
            return None
        with self._timed():
            return self._masks(step, tree)

    def _masks(self, step: StepLayout, tree: DraftTree | None) -> TokenMasks | None:
        self._table.clear()
        rows: list[int] = []
        for index, scheduled in enumerate(step.drawing):
            matcher = self._matchers.get(scheduled.request.request_id)
            has_tree = tree is not None and scheduled.max_draft_depth > 0
            if matcher is None:
                rows += [-1] * (step.num_rows(scheduled) if has_tree else 1)
                continue
            with self._time.taking(scheduled.request.request_id):
                root = self._table.add(matcher)
            if tree is None or not has_tree:
                rows.append(root)
                continue
            with self._time.taking(scheduled.request.request_id, is_for_drafts=True):
                count = step.num_rows(scheduled)
                nodes = TreeNodes(tree.tokens[index, :count].tolist(), tree.parents[index, :count].tolist())
                rows += fill_tree(matcher, nodes, self._table, root)
        return self._table.masks(rows, self._device)

    def masks_of(self, requests: Sequence[Request], paths: Sequence[Sequence[int]]) -> TokenMasks | None:
        """Masks of tree nodes that are about to grow children; None when no request is guided.

        Args:
            paths: draft tokens from below the root down to each node, request by request, the same number of each.
        """
        matchers = [self._matchers.get(request.request_id) for request in requests]
        if not any(matchers):
            return None
        with self._timed():
            self._table.clear()
            num_per_request = len(paths) // len(requests)
            rows: list[int] = []
            for index, (request, matcher) in enumerate(zip(requests, matchers, strict=True)):
                own = paths[index * num_per_request : (index + 1) * num_per_request]
                if matcher is None:
                    rows += [-1] * num_per_request
                    continue
                with self._time.taking(request.request_id, is_for_drafts=True):
                    rows += [_mask_below(matcher, path, self._table) for path in own]
            return self._table.masks(rows, self._device)

    def bound(self, request: Request, stream: TextStream) -> None:
        """Keep a request whose grammar delays others from drafting, or end it; to be called once a step."""
        grammar = self._grammars.get(request.request_id)
        if grammar is None:
            return
        verdict = self._time.judge(request.request_id, grammar)
        if verdict is GrammarVerdict.OVERDUE:
            abort(request, stream, OVERDUE)
        elif verdict is GrammarVerdict.WITHOUT_DRAFTS:
            request.speculate = request.looks_up = False

    @property
    def has_guided(self) -> bool:
        """Whether any running request is guided."""
        return bool(self._matchers)

    def is_guided(self, request: Request) -> bool:
        """Whether a running request follows a grammar."""
        return request.request_id in self._matchers

    def check(self, requests: Sequence[Request]) -> None:
        """Compare every matcher with one that reads the committed output anew.

        Raises:
            ConsistencyError: they disagree on what may come next.
        """
        for request in requests:
            matcher = self._matchers.get(request.request_id)
            if matcher is None or request.is_finished:
                continue
            held, fresh = MaskTable(self._vocab_size), MaskTable(self._vocab_size)
            numbers = held.add(matcher), fresh.add(_matcher_at(self._grammars[request.request_id], request))
            if numbers[0] != numbers[1] or not numpy.array_equal(held._bits, fresh._bits):
                raise ConsistencyError(f"request {request.request_id}: the grammar's state differs from a fresh one")


def fill_tree(matcher: Matcher, nodes: TreeNodes, table: MaskTable, root: int) -> list[int]:
    """Masks along each node's own path; the matcher stands at the root before and after.

    Args:
        root: number of the mask of the root, which is written already.

    Returns:
        Number of the mask of every node; -1 where no mask is needed: at absent nodes, below an illegal token or an end.
    """
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(nodes.parents):
        children.setdefault(parent, []).append(node)
    rows = [-1] * len(nodes.parents)
    rows[0] = root
    num_down = 0
    waiting = [(node, 0) for node in reversed(children.get(0, ()))]
    while waiting:
        node, depth = waiting.pop()
        matcher.rollback(num_down - depth)
        num_down = depth
        if matcher.accept(nodes.tokens[node]):
            num_down += 1
            rows[node] = table.add(matcher)
            waiting += [(child, num_down) for child in reversed(children.get(node, ()))]
    matcher.rollback(num_down)
    return rows


def _mask_below(matcher: Matcher, path: Sequence[int], table: MaskTable) -> int:
    """Number of the mask behind some more tokens; -1 where they leave the grammar or end the output."""
    num_down = 0
    while num_down < len(path) and matcher.accept(path[num_down]):
        num_down += 1
    row = table.add(matcher) if num_down == len(path) else -1
    matcher.rollback(num_down)
    return row


def _matcher_at(grammar: CompiledGrammar, request: Request) -> Matcher:
    matcher = grammar.matcher()
    _advance(matcher, request, request.output_token_ids)
    return matcher


def _advance(matcher: Matcher, request: Request, token_ids: Sequence[int]) -> None:
    for place, token_id in enumerate(token_ids):
        if not matcher.accept(token_id):
            raise InternalError(
                f"request {request.request_id}: token {token_id}, {place} of {len(token_ids)}, leaves its grammar"
            )
