"""The body of a chat completion."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from aquiline.server.protocol.common import GenerationBody, JsonObject
from aquiline.server.protocol.messages import ChatMessage, NamedToolChoice, Tool


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, description="Most tokens of an answer; default: the context.")
    logprobs: bool | None = Field(None, description="Report the log-probability of each token.")
    top_logprobs: int | None = Field(None, description="And of this many likely tokens, 0 to 20; needs logprobs.")
    tools: list[Tool] | None = Field(None, max_length=128, description="Functions that the model may call.")
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | JsonObject | None = Field(
        None, description="none, auto, required, or one function by name."
    )
    parallel_tool_calls: bool | None = Field(None, description="False keeps the first call only.")
    add_generation_prompt: bool | None = Field(None, description="Begin the assistant's answer; default true.")

    audio: Any = Field(None, description="Refused.")
    function_call: Any = Field(None, description="Refused; use tool_choice.")
    functions: Any = Field(None, description="Refused; use tools.")
    moderation: Any = Field(None, description="Refused.")
    prediction: Any = Field(None, description="Refused; drafts come from the draft model.")
    web_search_options: Any = Field(None, description="Refused.")
    modalities: list[str] | None = Field(None, description='["text"] only.')
    reasoning_effort: str | None = Field(None, description='"none" only: the models served here do not reason apart.')
    verbosity: str | None = Field(None, description='"medium" only: the model is not told how long to write.')
    service_tier: str | None = Field(None, description='"auto" or "default".')
    store: bool | None = Field(None, description="False only: nothing is stored.")
    metadata: dict[str, str] | None = Field(None, description="Ignored.")
    prompt_cache_key: str | None = Field(None, description="Ignored: equal prefixes are always shared.")
    prompt_cache_options: JsonObject | None = Field(None, description="Ignored: equal prefixes are always shared.")
    prompt_cache_retention: str | None = Field(None, description="Ignored: equal prefixes are always shared.")
    safety_identifier: str | None = Field(None, description="Ignored.")
