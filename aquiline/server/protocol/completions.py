"""The body of a text completion, and of its tokens."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from aquiline.server.protocol.common import Body, GenerationBody
from aquiline.server.protocol.messages import ChatMessage, Tool

TokenIds = Annotated[list[int], Field(max_length=2**20)]


class CompletionBody(GenerationBody):
    """`POST /v1/completions`."""

    prompt: str | list[str] | TokenIds | list[TokenIds] = Field(
        description="A text, a list of texts, token ids, or a list of lists of token ids."
    )
    logprobs: int | None = Field(None, description="Report log-probabilities, and of this many likely tokens; to 20.")
    echo: bool | None = Field(None, description="Put the prompt before the answer.")
    best_of: int | None = Field(None, description="Refused unless it equals n.")
    suffix: str | None = Field(None, description="Refused unless empty.")


class TokenizeBody(Body):
    """`POST /tokenize`: a text, or a conversation as the chat template writes it."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(None, min_length=1)
    tools: list[Tool] | None = None
    add_special_tokens: bool = Field(True, description="Of a text; the template of a conversation has its own.")
    add_generation_prompt: bool = True
    return_token_strs: bool = False


class TokenizeAnswer(Body):
    """The tokens of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeBody(Body):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: TokenIds


class DetokenizeAnswer(Body):
    """The text of tokens."""

    prompt: str


class Health(Body):
    """The state of the server."""

    status: Literal["ok"]


class Version(Body):
    """The version of Aquiline."""

    version: str


Anything = Any
