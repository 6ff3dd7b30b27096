"""From what a body asks to the prompts that the engine gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aquiline.errors import PromptError
from aquiline.server.completion_answer import EncodedPrompt
from aquiline.server.errors import ContextLengthError
from aquiline.server.protocol.completions import CompletionBody
from aquiline.tokenizer import Tokenizer


@dataclass(frozen=True)
class PromptLimits:
    """What the engine can hold.

    Attributes:
        max_request_tokens: most tokens of a prompt and its answer together.
        vocab_size: token ids are smaller than this.
    """

    max_request_tokens: int
    vocab_size: int

    def check(self, token_ids: Sequence[int], place: str = "prompt") -> None:
        """Refuse what the engine would refuse, before anything of the request runs.

        Raises:
            PromptError: no tokens, or ids that the model does not have.
            ContextLengthError: too long.
        """
        if not token_ids:
            raise PromptError(f"{place} has no tokens; give at least one")
        for token_id in token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise PromptError(f"{place} holds {token_id}; token ids are the integers 0 to {self.vocab_size - 1}")
        if len(token_ids) >= self.max_request_tokens:
            raise ContextLengthError(
                f"{place} has {len(token_ids)} tokens; at most {self.max_request_tokens - 1} are allowed, for a request"
                f" may hold {self.max_request_tokens} with its answer; shorten it"
            )


def encode_prompts(body: CompletionBody, tokenizer: Tokenizer, limits: PromptLimits) -> list[EncodedPrompt]:
    """The prompts of a text completion; token ids are decoded only when they are to be echoed.

    Raises:
        PromptError: a prompt that is empty, too long, or holds unknown token ids.
    """
    given: list[Any] = [body.prompt] if isinstance(body.prompt, str) or _is_one(body.prompt) else list(body.prompt)
    prompts = []
    for index, prompt in enumerate(given):
        place = "prompt" if len(given) == 1 else f"prompt[{index}]"
        token_ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        limits.check(token_ids, place)
        text = prompt if isinstance(prompt, str) else ""
        if body.echo and not isinstance(prompt, str):
            text = tokenizer.decode(token_ids, body.skip_special_tokens is not False)
        prompts.append(EncodedPrompt(text, tuple(token_ids)))
    if not prompts:
        raise PromptError("prompt is empty; give at least one")
    return prompts


def _is_one(prompt: Sequence[Any]) -> bool:
    return bool(prompt) and all(isinstance(entry, int) for entry in prompt)
