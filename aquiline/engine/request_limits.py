"""How far a request may go: context, cache, its own limit, and the positions of the draft model."""

from __future__ import annotations

from collections.abc import Sequence

from aquiline.engine.cache import BlockCache
from aquiline.errors import PromptError
from aquiline.request import Request


class RequestLimits:
    """Limits of every request of an engine, in tokens.

    Args:
        max_model_len: the settled limit of prompt and output together.
        draft_max_position: the draft model has rotary positions 0..draft_max_position - 1; None: as many as needed.

    Attributes:
        max_request_tokens: most tokens, prompt and output, that a request may ever hold.
    """

    def __init__(self, max_model_len: int, cache: BlockCache, draft_max_position: int | None) -> None:
        self._max_model_len = max_model_len
        self._cache = cache
        self._draft_max_position = draft_max_position
        self.max_request_tokens = min(max_model_len, cache.num_blocks * cache.block_size)

    def num_remaining_tokens(self, request: Request) -> int:
        """Tokens the request may still receive before it has to end with FinishReason.LENGTH."""
        remaining = self.max_request_tokens - request.num_tokens
        if request.params.max_tokens is not None:
            remaining = min(remaining, request.params.max_tokens - request.num_output_tokens)
        return remaining

    def check_prompt(self, request: Request) -> None:
        """Raise PromptError when the prompt is empty, or leaves no room for one output token in context or cache."""
        if not request.num_prompt_tokens:
            raise PromptError("the prompt has no tokens; give at least one")
        if request.num_prompt_tokens < self.max_request_tokens:
            return
        given = f"the prompt has {request.num_prompt_tokens} tokens; at most {self.max_request_tokens - 1} are allowed"
        if self.max_request_tokens == self._max_model_len:
            raise PromptError(
                f"{given}, for a request may hold {self._max_model_len} with its output; shorten the prompt"
                " or raise max_model_len if the model allows it"
            )
        raise PromptError(
            f"{given}, for the cache holds {self.max_request_tokens} tokens"
            f" ({self._cache.num_blocks} blocks of {self._cache.block_size}); shorten the prompt or enlarge the cache"
            " (num_blocks or kv_cache_gb)"
        )

    def is_beyond_draft(self, request: Request) -> bool:
        """Whether the draft model has no position for a child of the request's next root.

        Worked example, draft_max_position 4 (rotary positions 0..3; a draft row has one less than its slot): with the
        tokens a b c d the root d is in slot 3 and a child's draft row at rotary position 3. With a b c d e it would be
        at 4, which the draft cannot take now or later.
        """
        return self._draft_max_position is not None and request.num_tokens > self._draft_max_position

    def most_grown_depth(self, request: Request) -> int:
        """Deepest node that the draft model may grow and that could be committed; 0 when it grows no tree.

        Worked example, 3 tokens may still be received: nodes at depth 1 and 2 and the bonus token fill them, so the
        limit is 2. And with draft_max_position 8 and 6 computed tokens: the root is in slot 6, the node at depth d has
        its draft row at rotary position 6 + d - 1, and 6 and 7 exist, so the limit is 2.
        """
        # With nothing computed there is no feature yet, and so no draft row that could propose anything.
        if not request.speculate or not request.decodes or request.num_computed_tokens == 0:
            return 0
        limit = self.num_remaining_tokens(request) - 1
        if self._draft_max_position is not None:
            limit = min(limit, self._draft_max_position - request.num_computed_tokens)
        return max(0, limit)

    def most_known_depth(self, request: Request) -> int:
        """Deepest looked-up node that could be committed; 0 when nothing is looked up for the request."""
        if not request.looks_up or not request.decodes:
            return 0
        return max(0, self.num_remaining_tokens(request) - 1)


def check_token_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    """Raise PromptError for what is not a token id of the model."""
    for token_id in token_ids:
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise PromptError(
                f"the prompt holds {token_id!r}; this model's token ids are the integers 0 to {vocab_size - 1}"
            )
