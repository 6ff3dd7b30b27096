"""Fields that chat and text completions share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

JsonObject = dict[str, Any]
StopTexts = Annotated[list[str], Field(max_length=32)]
SERVICE_TIERS = ("auto", "default")


class Body(BaseModel):
    """A part of a request. Unknown fields are refused, and nothing is converted: "1" is no number."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Body):
    """How an answer is streamed."""

    include_usage: bool | None = Field(None, description="Send the token counts in a last event without choices.")
    include_obfuscation: bool | None = Field(None, description="Ignored: events are never padded.")


class SpeculationBody(Body):
    """How to speculate for this request. The answer is the same whatever is said here."""

    mode: str = Field("auto", max_length=2048, description="off, auto, or a shape such as chain:4.")


class StructuredOutputs(Body):
    """What an answer has to match, in vLLM's words; one of the first five is given."""

    json_: JsonObject | str | bool | None = Field(None, alias="json", description="A JSON schema.")
    regex: str | None = None
    choice: list[str] | None = Field(None, max_length=4096)
    grammar: str | None = Field(None, description="EBNF with a rule root.")
    json_object: bool | None = Field(None, description="Any JSON object.")
    whitespace: Literal["compact", "any"] | None = Field(None, description="Of JSON; default compact.")


class GenerationBody(Body):
    """What both kinds of completions take. Fields below `speculation` are not OpenAI's."""

    model: str | None = Field(None, max_length=1024, description="The served model; may be left out.")
    frequency_penalty: float | None = Field(None, description="Subtracted per earlier occurrence; -2 to 2.")
    presence_penalty: float | None = Field(None, description="Subtracted for tokens in the output; -2 to 2.")
    logit_bias: dict[str, float] | None = Field(
        None, max_length=1024, description="Token ids as text to numbers from -100 to 100, added to their logits."
    )
    max_tokens: int | None = Field(None, description="Most tokens of an answer.")
    n: int | None = Field(None, description="Answers per prompt.")
    seed: int | None = Field(None, description="Makes the answer repeatable; 0 to 2^63 - 1.")
    stop: str | Annotated[list[str], Field(max_length=32)] | None = Field(
        None, description="Texts that end the answer."
    )
    stream: bool | None = Field(None, description="Send the answer while it grows.")
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, description="0 takes the most likely token; default 1.")
    top_p: float | None = Field(None, description="Keep the most likely tokens up to this probability.")
    user: str | None = Field(None, description="Ignored.")
    response_format: JsonObject | None = Field(None, description="Type text, json_object or json_schema.")
    structured_outputs: StructuredOutputs | None = Field(None, description="What the answer has to match.")
    guided_json: JsonObject | str | None = Field(None, description="The answer fits this JSON schema.")
    guided_regex: str | None = Field(None, description="The answer matches this regular expression.")
    guided_choice: list[str] | None = Field(None, max_length=4096, description="The answer is one of these.")
    guided_grammar: str | None = Field(None, description="The answer matches this EBNF.")
    speculation: SpeculationBody | None = Field(None, description="How to speculate for this request.")
    stream_tokens: Literal["many", "single"] | None = Field(
        None, description="Events hold all tokens that a step committed (many, the default), or one token each."
    )
    aquiline: bool | None = Field(None, description="Add an `aquiline` object that tells what speculation did.")
    return_token_ids: bool | None = Field(None, description="Add the token ids of prompt and answer.")
    top_k: int | None = Field(None, description="Keep the k most likely tokens; 0 and -1 keep all.")
    min_p: float | None = Field(None, description="Drop tokens below this share of the most likely one.")
    repetition_penalty: float | None = Field(None, description="Weakens tokens in prompt or output; above 0.")
    min_tokens: int | None = Field(None, description="Nothing ends the answer before this many tokens.")
    ignore_eos: bool | None = Field(None, description="Go on past the model's end-of-sequence tokens.")
    stop_token_ids: list[int] | None = Field(None, max_length=256, description="Token ids that end the answer.")
    include_stop_str_in_output: bool | None = Field(None, description="Keep the stop text in the answer.")
    skip_special_tokens: bool | None = Field(None, description="Leave special tokens out of the text; default true.")
    allowed_token_ids: list[int] | None = Field(None, description="Draw only these tokens.")
    banned_token_ids: list[int] | None = Field(None, description="Never draw these tokens.")
    prompt_logprobs: int | None = Field(None, description="Log-probabilities of the prompt's tokens, with this many.")
    priority: int | None = Field(None, description="Lower runs first; default 0.", ge=-(2**31), lt=2**31)

    @property
    def is_streamed(self) -> bool:
        return bool(self.stream)

    @property
    def wants_stream_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class ModelCard(BaseModel):
    """The served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    """All served models: one."""

    object: Literal["list"]
    data: list[ModelCard]
