"""From the fields of a body to sampling parameters, and the refusal of fields that nothing here can honour."""

from __future__ import annotations

from typing import Any

from aquiline.errors import InvalidParameterError, UnsupportedFeatureError
from aquiline.request import MAX_LOGPROBS, SamplingParams
from aquiline.server.guided import guided_params
from aquiline.server.protocol.chat import ChatBody
from aquiline.server.protocol.common import SERVICE_TIERS, GenerationBody
from aquiline.server.protocol.completions import CompletionBody

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for text completions
MAX_STOP_CHARACTERS = 4096

# Fields of the body that sampling parameters have under the same name; where they are not given, defaults stand.
SAME_NAMES = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
    "allowed_token_ids",
    "banned_token_ids",
    "seed",
    "n",
    "prompt_logprobs",
)
REFUSED = {
    "audio": "answers are text",
    "function_call": "it is deprecated; use tool_choice",
    "functions": "it is deprecated; use tools",
    "moderation": "nothing is moderated here",
    "prediction": "guesses come from the draft model; leave it out",
    "web_search_options": "nothing is searched here",
}


def chat_params(body: ChatBody) -> SamplingParams:
    """The sampling parameters of a chat completion.

    Raises:
        InvalidParameterError: a value out of range, or two fields that contradict each other.
        UnsupportedFeatureError: a field that is not honoured here.
    """
    _refuse_chat_fields(body)
    values = _shared(body)
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise InvalidParameterError(
            f"max_tokens is {body.max_tokens} and max_completion_tokens {body.max_completion_tokens};"
            " they mean the same, give one of them"
        )
    values["max_tokens"] = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidParameterError("top_logprobs is given without logprobs; set logprobs to true as well")
    if body.logprobs:
        values["logprobs"] = _checked_top("top_logprobs", body.top_logprobs or 0)
    return SamplingParams(**values)


def completion_params(body: CompletionBody) -> SamplingParams:
    """The sampling parameters of a text completion; `max_tokens` 0, which only echoes, becomes 1 token to drop.

    Raises:
        InvalidParameterError, UnsupportedFeatureError: as `chat_params`.
    """
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise UnsupportedFeatureError(f"best_of is {body.best_of}; answers are not ranked here, ask for them with n")
    if body.suffix:
        raise UnsupportedFeatureError("suffix is given; the models served here only continue texts, leave it out")
    values = _shared(body)
    max_tokens = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    values["max_tokens"] = 1 if max_tokens == 0 and body.echo else max_tokens
    if body.logprobs is not None:
        values["logprobs"] = _checked_top("logprobs", body.logprobs)
        if body.echo:
            values["prompt_logprobs"] = max(values["logprobs"], values.get("prompt_logprobs", 0))
    return SamplingParams(**values)


def _shared(body: GenerationBody) -> dict[str, Any]:
    given = {name: getattr(body, name) for name in SAME_NAMES}
    values = {name: value for name, value in given.items() if value is not None}
    values["guided"] = guided_params(body)
    if body.speculation is not None:
        values["speculation"] = body.speculation.mode
    if body.top_k is not None:
        values["top_k"] = 0 if body.top_k == -1 else body.top_k
    if body.logit_bias is not None:
        values["logit_bias"] = _token_bias(body.logit_bias)
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if sum(map(len, stop)) > MAX_STOP_CHARACTERS:
        raise InvalidParameterError(f"stop has more than {MAX_STOP_CHARACTERS} characters together; shorten it")
    if body.stream_options is not None and not body.stream:
        raise InvalidParameterError("stream_options is given and stream is not true; leave it out, or stream")
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidParameterError("prompt_logprobs is given and stream is true; they are only in whole answers")
    if body.stream_tokens is not None and not body.stream:
        raise InvalidParameterError("stream_tokens is given and stream is not true; leave it out, or stream")
    return values


def _token_bias(bias: dict[str, float]) -> dict[int, float]:
    for name in bias:
        if not name.isascii() or not name.isdigit() or len(name) > 9:
            raise InvalidParameterError(f"logit_bias has the key {name[:80]!r}; its keys are token ids such as '42'")
    return {int(name): value for name, value in bias.items()}


def _checked_top(name: str, value: int) -> int:
    if not 0 <= value <= MAX_LOGPROBS:
        raise InvalidParameterError(f"{name} is {value}; it must be an integer from 0 to {MAX_LOGPROBS}")
    return value


def _refuse_chat_fields(body: ChatBody) -> None:
    for name, reason in REFUSED.items():
        if getattr(body, name) is not None:
            raise UnsupportedFeatureError(f"{name} is not offered here: {reason}")
    if body.modalities not in (None, ["text"]):
        raise UnsupportedFeatureError(f'modalities is {body.modalities!r}; only ["text"] is offered here')
    if body.reasoning_effort not in (None, "none"):
        raise UnsupportedFeatureError(
            f"reasoning_effort is {body.reasoning_effort!r}; the models served here do not reason apart, leave it out"
        )
    if body.verbosity not in (None, "medium"):
        raise UnsupportedFeatureError(f"verbosity is {body.verbosity!r}; ask for it in a message, and leave it out")
    if body.service_tier not in (None, *SERVICE_TIERS):
        raise UnsupportedFeatureError(f"service_tier is {body.service_tier!r}; only auto and default are offered here")
    if body.store:
        raise UnsupportedFeatureError("store is true; nothing is stored here, leave it out")
