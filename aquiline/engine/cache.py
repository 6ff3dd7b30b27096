"""Which cache block holds what: block tables, reference counts and the prefix cache, in integers only.

One block table serves the target KV and the draft rows, because slot j of both depends on tokens 0..j only.

Worked example, block size 4. Nine tokens are known, r is the one not yet computed; the draft is one step behind:

    slot                    0  1  2  3 | 4  5  6  7 | 8
    token                   a  b  c  d | e  f  g  h | r
    num_computed_tokens 8   k  k  k  k | k  k  k  k |      target rows in slots 0..7 are final
    num_draft_rows 6        -  d  d  d | d  d  d    |      draft rows in slots 1..6 are final

    block 0 ends at slot 3: 3 < 8 and 3 <= 6, so it carries target and draft rows
    block 1 ends at slot 7: 7 < 8 but 7 > 6, so it carries target rows only

A new request with the tokens a b c d e f g h may find at most 7 of them, for its last one must be computed to draw the
next; in whole blocks that is 4. It starts with 4 computed tokens and draft rows in slots 1..3. The draft row of slot 4
needs the auxiliary hidden state of position 3, which whoever keeps the tensors holds with every block as the state of
its last row.

Only full blocks with final rows are ever shared, and nobody writes to those, so copy-on-write never has anything to do.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from aquiline.errors import ConsistencyError
from aquiline.request import Request


@dataclass(slots=True, eq=False)
class _KnownBlock:
    """A findable block, reached from the root by the tokens of its ancestors and its own.

    Attributes:
        tokens: the token ids of its slots.
        num_blocks: blocks from the beginning of the sequence up to and with this one; 0 for the root.
        has_draft_rows: the draft rows of its slots are final too; then so are those of all its ancestors.
        is_findable: False once it, or an ancestor, was evicted.
    """

    parent: _KnownBlock | None
    tokens: tuple[int, ...]
    block_id: int
    num_blocks: int
    has_draft_rows: bool
    is_findable: bool = True
    children: dict[tuple[int, ...], _KnownBlock] = field(default_factory=dict)


class BlockCache:
    """A pool of blocks, the tables that use them, and the beginnings that can be found in them.

    A block table changes only at its end: blocks are appended, and unwritten ones taken off again.

    Attributes:
        num_blocks: blocks in the pool.
        block_size: slots in a block.
        num_query_tokens: tokens of all requests whose beginning was looked up at their first admission.
        num_hit_tokens: those of them that were found.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_cache: bool) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_query_tokens = 0
        self.num_hit_tokens = 0
        self._enable_prefix_cache = enable_prefix_cache
        self._ref_counts = [0] * num_blocks
        self._blank_blocks = list(reversed(range(num_blocks)))
        # Unused but findable, the longest unused first.
        self._idle_blocks: OrderedDict[int, None] = OrderedDict()
        self._root = _KnownBlock(None, (), -1, 0, has_draft_rows=True)
        self._known: dict[int, _KnownBlock] = {}
        # Per request with a table: the last block of its path that was looked up or published.
        self._published: dict[str, _KnownBlock] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no table uses; some of them may still be found by their content."""
        return len(self._blank_blocks) + len(self._idle_blocks)

    @property
    def num_cached_blocks(self) -> int:
        """Findable blocks, used or not."""
        return len(self._known)

    def blocks_for(self, num_slots: int) -> int:
        """How many blocks cover `num_slots` slots."""
        return -(-num_slots // self.block_size)

    def admit(self, request: Request, num_slots: int, num_spare_blocks: int = 0) -> bool:
        """Give a request without a table the longest known beginning and blocks up to `num_slots`, or nothing at all.

        Args:
            num_spare_blocks: blocks that must stay free afterwards.

        Returns:
            Whether it was done; if not, nothing has changed.
        """
        path = self._find_prefix(request, request.speculate)
        num_missing = self.blocks_for(num_slots) - len(path)
        num_idle = sum(self._ref_counts[known.block_id] == 0 for known in path)
        if num_missing + num_spare_blocks > self.num_free_blocks - num_idle:
            return False
        self._take_prefix(request, path)
        return self.grow(request, num_slots)

    def acquire_prefix(self, request: Request) -> int:
        """Give a request without a table the longest known beginning: whole blocks, never its last token.

        A request that speculates finds only blocks that carry draft rows; one that wants prompt_logprobs finds none,
        for the rows of its prompt must be computed. Sets num_computed_tokens, num_draft_rows and, unless the request
        was preempted before, num_cached_tokens.

        Returns:
            Number of tokens found.
        """
        return self._take_prefix(request, self._find_prefix(request, request.speculate))

    def finds_more_without_draft(self, request: Request) -> bool:
        """Whether a longer beginning is known than one that carries draft rows."""
        return len(self._find_prefix(request, False)) > len(self._find_prefix(request, request.speculate))

    def _find_prefix(self, request: Request, needs_draft_rows: bool) -> list[_KnownBlock]:
        path: list[_KnownBlock] = []
        if not self._looks_up(request):
            return path
        known = self._root
        # A block from `start` may be taken when start + block_size <= num_tokens - 1.
        for start in range(0, request.num_tokens - self.block_size, self.block_size):
            child = known.children.get(tuple(request.token_ids[start : start + self.block_size]))
            if child is None or (needs_draft_rows and not child.has_draft_rows):
                break
            path.append(child)
            known = child
        return path

    def _looks_up(self, request: Request) -> bool:
        return self._enable_prefix_cache and request.params.prompt_logprobs is None

    def _take_prefix(self, request: Request, path: list[_KnownBlock]) -> int:
        assert not request.block_ids, f"{request.request_id} already has a block table"
        for known in path:
            self._idle_blocks.pop(known.block_id, None)
            self._ref_counts[known.block_id] += 1
            request.block_ids.append(known.block_id)
        num_tokens = len(path) * self.block_size
        num_with_draft_rows = sum(known.has_draft_rows for known in path) * self.block_size
        request.num_computed_tokens = num_tokens
        request.num_draft_rows = max(0, num_with_draft_rows - 1)
        if path:
            self._published[request.request_id] = path[-1]
        if request.num_preemptions == 0:
            request.num_cached_tokens = num_tokens
            if self._looks_up(request):
                self.num_query_tokens += request.num_tokens
                self.num_hit_tokens += num_tokens
        return num_tokens

    def grow(self, request: Request, num_slots: int) -> bool:
        """Make the request's table cover `num_slots` slots, or change nothing and return False."""
        num_missing = self.blocks_for(num_slots) - len(request.block_ids)
        if num_missing > self.num_free_blocks:
            return False
        for _ in range(num_missing):
            if not self._blank_blocks:
                self._forget(self._known[next(iter(self._idle_blocks))])
            block_id = self._blank_blocks.pop()
            self._ref_counts[block_id] = 1
            request.block_ids.append(block_id)
        return True

    def trim(self, request: Request, num_slots: int) -> int:
        """Take blocks off the request's table that lie wholly beyond its first `num_slots` slots; how many they were.

        Those slots must hold nothing that is still needed.
        """
        surplus = request.block_ids[self.blocks_for(num_slots) :]
        del request.block_ids[self.blocks_for(num_slots) :]
        self._drop_references(surplus)
        return len(surplus)

    def publish(self, request: Request) -> None:
        """Make every full block of the request whose rows are final findable.

        Trusts num_computed_tokens and num_draft_rows. While a request speculates, its blocks wait until they carry
        draft rows. Of two blocks with the same content the first stays findable, unless only the second carries draft
        rows.
        """
        self._publish(request, needs_draft_rows=request.speculate)

    def _publish(self, request: Request, needs_draft_rows: bool) -> None:
        if not self._enable_prefix_cache or not request.block_ids:
            return
        known = self._published.get(request.request_id, self._root)
        if not known.is_findable:
            known = self._root
        size = self.block_size
        for index in range(known.num_blocks, request.num_computed_tokens // size):
            has_draft_rows = self._carries_draft_rows(request, last_slot=(index + 1) * size - 1)
            if needs_draft_rows and not has_draft_rows:
                break
            tokens = tuple(request.token_ids[index * size : (index + 1) * size])
            known = self._remember(known, tokens, request.block_ids[index], has_draft_rows)
        self._published[request.request_id] = known

    def _carries_draft_rows(self, request: Request, last_slot: int) -> bool:
        # Slot 0 has no draft row, so `0 <= 0` would also hold for a request that never ran the draft and whose
        # auxiliary hidden states nobody kept.
        runs_draft = request.speculate or request.num_draft_rows > 0
        return runs_draft and last_slot <= request.num_draft_rows

    def _remember(
        self, parent: _KnownBlock, tokens: tuple[int, ...], block_id: int, has_draft_rows: bool
    ) -> _KnownBlock:
        known = parent.children.get(tokens)
        if known is None:
            known = _KnownBlock(parent, tokens, block_id, parent.num_blocks + 1, has_draft_rows)
            parent.children[tokens] = known
            self._known[block_id] = known
        elif has_draft_rows and not known.has_draft_rows:
            self._drop_known_block(known)
            known.block_id, known.has_draft_rows = block_id, True
            self._known[block_id] = known
        return known

    def _drop_known_block(self, known: _KnownBlock) -> None:
        del self._known[known.block_id]
        if known.block_id in self._idle_blocks:
            del self._idle_blocks[known.block_id]
            self._blank_blocks.append(known.block_id)

    def _forget(self, known: _KnownBlock) -> None:
        """Make a block, and with it everything that was reached through it, unfindable."""
        assert known.parent is not None, "the root holds no block"
        del known.parent.children[known.tokens]
        unreachable = [known]
        while unreachable:
            lost = unreachable.pop()
            unreachable.extend(lost.children.values())
            lost.is_findable = False
            self._drop_known_block(lost)

    def free(self, request: Request) -> None:
        """Drop the request's table; its full blocks with final target rows stay findable until they are needed.

        The last blocks are freed first, so that they are evicted before the beginnings that more requests share. Blocks
        that a speculating request had not yet published become findable as what they are: without draft rows.
        """
        self._publish(request, needs_draft_rows=False)
        self._drop_references(request.block_ids)
        request.block_ids = []
        self._published.pop(request.request_id, None)

    def _drop_references(self, block_ids: list[int]) -> None:
        for block_id in reversed(block_ids):
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] > 0:
                continue
            if block_id in self._known:
                self._idle_blocks[block_id] = None
            else:
                self._blank_blocks.append(block_id)

    def assert_writable(self, request: Request, first_slot: int, last_slot: int) -> None:
        """Check that slots `first_slot` to `last_slot`, both included, belong to this request alone.

        Raises:
            ConsistencyError: a slot outside the table, or in a block that others may read.
        """
        for index in range(first_slot // self.block_size, last_slot // self.block_size + 1):
            if index >= len(request.block_ids):
                raise ConsistencyError(f"{request.request_id} has no block for slot {index * self.block_size}")
            block_id = request.block_ids[index]
            if self._ref_counts[block_id] != 1 or block_id in self._known:
                raise ConsistencyError(
                    f"{request.request_id} would write to block {block_id}, which is shared or published"
                )

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Check the pool, the tables and the prefix cache against each other.

        Args:
            requests: every request that has a table.

        Raises:
            ConsistencyError: they do not agree.
        """
        holders = [request for request in requests if request.block_ids]
        uses = Counter(block_id for request in holders for block_id in request.block_ids)
        _require(
            all(count == uses[block_id] for block_id, count in enumerate(self._ref_counts)),
            "reference counts differ from the block tables",
        )
        _require(all(len(set(r.block_ids)) == len(r.block_ids) for r in holders), "a table holds a block twice")
        accounted = sorted([*self._blank_blocks, *self._idle_blocks, *uses])
        _require(accounted == list(range(self.num_blocks)), "free and used blocks do not add up to the pool")
        _require(self._idle_blocks.keys() <= self._known.keys(), "an idle block is not findable")
        _require(self._known.keys().isdisjoint(self._blank_blocks), "a blank block is findable")
        _require(self._published.keys() <= {r.request_id for r in holders}, "a finished request is remembered")
        self._check_known_blocks()
        for request in holders:
            self._check_content(request)

    def _check_known_blocks(self) -> None:
        unvisited, num_visited = list(self._root.children.values()), 0
        while unvisited:
            known = unvisited.pop()
            parent = known.parent
            num_visited += 1
            unvisited.extend(known.children.values())
            _require(self._known.get(known.block_id) is known, "a findable block is not registered")
            _require(len(known.tokens) == self.block_size and known.is_findable, "a findable block is not whole")
            _require(parent is not None and parent.children.get(known.tokens) is known, "a block has a wrong parent")
            _require(
                parent is not None and parent.has_draft_rows >= known.has_draft_rows,
                "a block carries draft rows and its parent does not",
            )
        _require(num_visited == len(self._known), "a registered block cannot be found")

    def _check_content(self, request: Request) -> None:
        for index, block_id in enumerate(request.block_ids):
            if block_id in self._known:
                num_tokens = (index + 1) * self.block_size
                _require(
                    self._tokens_up_to(self._known[block_id]) == request.token_ids[:num_tokens],
                    f"block {block_id} of {request.request_id} is published under other tokens",
                )

    def _tokens_up_to(self, known: _KnownBlock) -> list[int]:
        path: list[_KnownBlock] = []
        while known.parent is not None:
            path.append(known)
            known = known.parent
        return [token for block in reversed(path) for token in block.tokens]


def _require(holds: bool, failure: str) -> None:
    if not holds:
        raise ConsistencyError(f"block cache: {failure}")
