"""What clients read. These records describe answers; `chat_answer` and `completion_answer` write them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

FinishWord = Literal["stop", "length", "tool_calls"]


class Described(BaseModel):
    """A part of an answer; it has no other fields than these."""

    model_config = ConfigDict(extra="forbid")


class PromptTokensDetails(Described):
    """Of the tokens of prompts."""

    cached_tokens: int


class CompletionTokensDetails(Described):
    """Of draft tokens: those that were committed, and those that were computed for nothing."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(Described):
    """Counts of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class AquilineFigures(Described):
    """What speculation did for an answer."""

    acceptance_length: float
    acceptance_rate: float
    num_verify_steps: int
    num_committed_tokens: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    time_per_committed_token_ms: float
    seeds: list[int]


class RunFigures(Described):
    """What one step added to a choice."""

    num_tokens: int
    num_accepted_draft_tokens: int


class ChoiceFigures(Described):
    """The steps of a choice."""

    runs: list[RunFigures]


class Extras(Described):
    """What every choice may have beside OpenAI's fields."""

    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    aquiline: ChoiceFigures | None = None


class TopLogprob(Described):
    """A likely token."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(TopLogprob):
    """A token of a chat answer."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Described):
    """The tokens of a chat answer."""

    content: list[ChatTokenLogprob]
    refusal: None


class AnsweredFunction(Described):
    """A function and its arguments, a JSON object as text."""

    name: str
    arguments: str


class AnsweredCall(Described):
    """A call of a function."""

    id: str
    type: Literal["function"]
    function: AnsweredFunction


class AnswerMessage(Described):
    """The message of a choice."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[AnsweredCall] | None = None


class ChatChoice(Extras):
    """One answer to a conversation."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishWord


class CompletionLogprobs(Described):
    """The tokens of a text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Extras):
    """One continuation of a text."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishWord


class Answered(Described):
    """What whole answers share."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    aquiline: AquilineFigures | None = None


class ChatCompletion(Answered):
    """A whole answer to a conversation."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class Completion(Answered):
    """A whole answer to prompts."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
