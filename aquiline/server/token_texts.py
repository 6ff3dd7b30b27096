"""How single tokens and their log-probabilities are written in answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aquiline.request import TokenLogprob
from aquiline.tokenizer import Tokenizer

LOWEST_LOGPROB = -9999.0  # JSON knows no infinities; OpenAI writes an impossible token like this


def spell_token(tokenizer: Tokenizer, token_id: int) -> str:
    """A token as text; one that is no valid UTF-8 by itself is spelt `bytes:\\xe2\\x96`, so that it stays apart."""
    encoded = tokenizer.token_bytes(token_id)
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in encoded)


def chat_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """The `content` list of a chat choice's `logprobs`."""
    return [
        {
            **_chat_token(tokenizer, entry.token_id, entry.logprob),
            "top_logprobs": [_chat_token(tokenizer, token_id, logprob) for token_id, logprob in entry.top],
        }
        for entry in logprobs
    ]


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    encoded = tokenizer.token_bytes(token_id)
    return {"token": encoded.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(encoded)}


def completion_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[TokenLogprob | None],
    offsets: Sequence[int],
) -> dict[str, Any]:
    """The `logprobs` object of a text completion's choice; None stands for the first token of a prompt."""
    return {
        "tokens": [spell_token(tokenizer, token_id) for token_id in token_ids],
        "token_logprobs": [None if entry is None else finite(entry.logprob) for entry in logprobs],
        "top_logprobs": [None if entry is None else _top(tokenizer, entry) for entry in logprobs],
        "text_offset": list(offsets),
    }


def _top(tokenizer: Tokenizer, entry: TokenLogprob) -> dict[str, float]:
    """The most likely tokens and the one that was drawn."""
    likely = {spell_token(tokenizer, token_id): finite(logprob) for token_id, logprob in entry.top}
    return likely | {spell_token(tokenizer, entry.token_id): finite(entry.logprob)}


def prompt_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob | None]) -> list[dict[str, Any] | None]:
    """One entry per prompt token, None for the first: token ids as text to log-probability, rank and text."""
    return [None if entry is None else _prompt_entry(tokenizer, entry) for entry in logprobs]


def _prompt_entry(tokenizer: Tokenizer, entry: TokenLogprob) -> dict[str, Any]:
    ranked = {
        str(token_id): {"logprob": finite(logprob), "rank": rank, "decoded_token": spell_token(tokenizer, token_id)}
        for rank, (token_id, logprob) in enumerate(entry.top, start=1)
    }
    own = {"logprob": finite(entry.logprob), "rank": entry.rank}
    return ranked | {str(entry.token_id): own | {"decoded_token": spell_token(tokenizer, entry.token_id)}}


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold."""
    return max(logprob, LOWEST_LOGPROB)
