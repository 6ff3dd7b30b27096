"""What is new in an answer since the last look.

Worked example, one step commits the tokens `a`, `E` and `N` where `END` would stop the answer, the next one `x`:

    many      `a` with three tokens, then `ENx` with one
    single    `a`, ``, ``, then `ENx`, with one token each

An answer held everything before, so the pieces joined are its text, and no character is in two of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from aquiline.request import CompletionOutput, FinishReason, TokenLogprob
from aquiline.token_bytes import IncrementalDecoder


@dataclass(slots=True)
class TextDelta:
    """The next piece of an answer.

    Attributes:
        offsets: where each token's text begins in the text of the answer, in characters, as far as nothing was cut.
        finish_reason: of the last piece; None in all others.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    offsets: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class TextDeltas:
    """Cuts one answer into pieces.

    Args:
        decoder: of this answer alone; None when neither single tokens nor offsets are asked for.
        is_single: one token per piece.
    """

    __slots__ = ("_decoder", "_is_finished", "_is_single", "_num_characters", "_num_decoded", "_num_tokens")

    def __init__(self, decoder: IncrementalDecoder | None = None, is_single: bool = False) -> None:
        assert decoder is not None or not is_single, "single tokens need a decoder"
        self._decoder = decoder
        self._is_single = is_single
        self._num_characters = 0
        self._num_tokens = 0
        self._num_decoded = 0
        self._is_finished = False

    def advance(self, completion: CompletionOutput) -> list[TextDelta]:
        """The pieces between the last look and `completion`; empty when nothing is new."""
        first, end = self._num_tokens, len(completion.token_ids)
        is_ending = completion.finish_reason is not None
        if self._is_finished or (first == end and not is_ending):
            return []
        self._is_finished = is_ending
        if self._decoder is None:
            return [self._everything_new(completion, first)]
        bounds = self._decode(self._decoder, completion.token_ids[first:])
        pieces = []
        for cut in (*(range(first + 1, end) if self._is_single else ()), end):
            start, num_before = self._num_tokens, self._num_characters
            self._num_tokens = cut
            self._num_characters = len(completion.text)
            if cut < end:
                self._num_characters = max(num_before, min(bounds[cut - first], len(completion.text)))
            pieces.append(
                TextDelta(
                    text=completion.text[num_before : self._num_characters],
                    token_ids=completion.token_ids[start:cut],
                    logprobs=None if completion.logprobs is None else completion.logprobs[start:cut],
                    offsets=tuple(bounds[:-1][start - first : cut - first]),
                    finish_reason=completion.finish_reason if cut == end else None,
                    stop_reason=completion.stop_reason if cut == end else None,
                )
            )
        return pieces

    def _everything_new(self, completion: CompletionOutput, first: int) -> TextDelta:
        """One piece, without offsets: what nearly all streams ask for in every step."""
        start = self._num_characters
        self._num_tokens, self._num_characters = len(completion.token_ids), len(completion.text)
        return TextDelta(
            completion.text[start:],
            completion.token_ids[first:],
            None if completion.logprobs is None else completion.logprobs[first:],
            (),
            completion.finish_reason,
            completion.stop_reason,
        )

    def _decode(self, decoder: IncrementalDecoder, token_ids: tuple[int, ...]) -> list[int]:
        """Characters of the text before the first of `token_ids`, and after each of them."""
        bounds = [self._num_decoded]
        for token_id in token_ids:
            self._num_decoded += len(decoder.push(token_id))
            bounds.append(self._num_decoded)
        return bounds
