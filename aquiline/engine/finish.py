"""When an output ends: every stop rule, applied token by token to an accepted run.

Order at one token: end-of-sequence, stop token ids, stop strings, then the length limits. The first token at which any
rule fires is the last one of the output; a stop wins over a length limit reached at the same token.

    run            a   b   STOP  x   y      (accepted draft tokens and the bonus token)
    committed      a   b   STOP             x and y never existed: not in ids, text, figures or caches
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aquiline.engine.stream import TextStream
from aquiline.request import FinishReason, Request, RequestStatus


@dataclass(frozen=True)
class Committed:
    """What one run added to an output.

    Attributes:
        token_ids: the tokens of the run that the user receives.
        finish_reason: None while the output goes on.
        stop_reason: the stop string or stop token id that ended it, or why it was aborted where its grammar was too
            slow; None for end-of-sequence and length.
    """

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    stop_reason: int | str | None


@dataclass(frozen=True)
class _Ending:
    finish_reason: FinishReason
    stop_reason: int | str | None = None


def commit_tokens(request: Request, stream: TextStream, run: Sequence[int], max_model_len: int) -> Committed:
    """Append an accepted run to a request, up to and including the first token that ends its output.

    Sets `token_ids` and, at the end, `status`, `finish_reason` and `stop_reason` of the request. The token that ends an
    output stays in `token_ids`; the text of an end-of-sequence or stop token shows only with
    `include_stop_str_in_output`, and then only when it is not left out as a special token.

    Before `min_tokens` output tokens nothing but the length limits ends an output.

    Args:
        stream: of this request, holding the text of all its earlier output tokens.
        run: accepted draft tokens and the bonus token, at least one token.
        max_model_len: most tokens of prompt and output together.
    """
    assert not request.is_finished, "a run for a finished request"
    num_before = request.num_tokens
    for token_id in run:
        request.token_ids.append(token_id)
        ending = _push(request, stream, token_id, max_model_len)
        if ending is not None:
            _finish(request, stream, ending)
            break
    return Committed(tuple(request.token_ids[num_before:]), request.finish_reason, request.stop_reason)


def abort(request: Request, stream: TextStream, reason: str | None = None) -> None:
    """End the output of a request where it stands; a finished request keeps its own reason."""
    if not request.is_finished:
        _finish(request, stream, _Ending(FinishReason.ABORT, reason))


def _push(request: Request, stream: TextStream, token_id: int, max_model_len: int) -> _Ending | None:
    """Add the text of the newest token; returns how it ends the output, if it does."""
    params = request.params
    may_stop = request.num_output_tokens >= params.min_tokens
    # A grammar lets the model end only where nothing else may be left to say.
    may_end = may_stop or params.guided is not None
    if may_end and token_id in request.eos_token_ids and not params.ignore_eos:
        stream.push_stop_token(token_id)
        return _Ending(FinishReason.STOP)
    if may_stop and token_id in params.stop_token_ids:
        stream.push_stop_token(token_id)
        return _Ending(FinishReason.STOP, token_id)
    match = stream.push(token_id, may_stop)
    if match is not None:
        return _Ending(FinishReason.STOP, match.stop)
    if params.max_tokens is not None and request.num_output_tokens >= params.max_tokens:
        return _Ending(FinishReason.LENGTH)
    if request.num_tokens >= max_model_len:
        return _Ending(FinishReason.LENGTH)
    return None


def _finish(request: Request, stream: TextStream, ending: _Ending) -> None:
    stream.close()
    request.status = RequestStatus.FINISHED
    request.finish_reason = ending.finish_reason
    request.stop_reason = ending.stop_reason
