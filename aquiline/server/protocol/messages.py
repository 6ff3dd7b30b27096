"""Messages and tools of a conversation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from aquiline.errors import PromptError, UnsupportedFeatureError
from aquiline.server.protocol.common import Body, JsonObject

Role = Literal["system", "developer", "user", "assistant", "tool"]


class TextPart(Body):
    """A piece of text of a message."""

    type: Literal["text"] = Field(description="Only text: the models served here read nothing else.")
    text: str
    prompt_cache_breakpoint: JsonObject | None = Field(None, description="Ignored: prefixes are always cached.")


class CalledFunction(Body):
    """A function and the arguments of one call."""

    name: str
    arguments: str = Field(description="A JSON object as text.")


class ToolCall(Body):
    """A call that an assistant message made."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Body):
    """One message. Assistant messages may be sent back as they were received."""

    role: Role
    content: str | list[TextPart] | None = None
    name: str | None = Field(None, description="Handed to the chat template.")
    tool_calls: list[ToolCall] | None = Field(None, description="Of an assistant message.")
    tool_call_id: str | None = Field(None, description="Of a tool message: the call that it answers.")
    refusal: str | None = Field(None, description="Ignored.")
    annotations: list[Any] | None = Field(None, description="Ignored.")
    audio: None = Field(None, description="Null only.")
    function_call: None = Field(None, description="Null only; `tool_calls` took its place.")


class FunctionDefinition(Body):
    """A function that the model may call."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: JsonObject | None = Field(None, description="JSON schema of the arguments.")
    strict: bool | None = Field(None, description="True needs a tool_choice that forces a call.")


class Tool(Body):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Body):
    """The name of a function."""

    name: str


class NamedToolChoice(Body):
    """A choice of one function."""

    type: Literal["function"]
    function: NamedFunction


def template_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """The messages as chat templates read them: calls with arguments as objects, developers as system.

    Raises:
        PromptError: a message that lacks what its role needs, or call arguments that are no JSON object.
    """
    return [_template_message(index, message) for index, message in enumerate(messages)]


def _template_message(index: int, message: ChatMessage) -> dict[str, Any]:
    place = f"messages[{index}]"
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role}
    if isinstance(message.content, list):
        plain["content"] = "\n".join(part.text for part in message.content)
    elif message.content is not None:
        plain["content"] = message.content
    elif not message.tool_calls:
        raise PromptError(f"{place} has no content; only an assistant message with tool_calls may do without")
    else:
        plain["content"] = ""
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_calls:
        if role != "assistant":
            raise PromptError(f"{place} has tool_calls and the role {message.role}; only an assistant calls tools")
        plain["tool_calls"] = [_template_call(place, call) for call in message.tool_calls]
    if role == "tool":
        if message.tool_call_id is None:
            raise PromptError(f"{place} answers a tool call and does not say which; give its tool_call_id")
        plain["tool_call_id"] = message.tool_call_id
    elif message.tool_call_id is not None:
        raise PromptError(f"{place} has a tool_call_id and the role {message.role}; only a tool message answers a call")
    return plain


def _template_call(place: str, call: ToolCall) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise PromptError(f"{place} calls {call.function.name!r} with arguments that are no JSON object; send one")
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def template_tools(tools: Sequence[Tool], is_guided: bool = False) -> list[dict[str, Any]]:
    """The tools as chat templates read them.

    Args:
        is_guided: the answer has to be a call, and its arguments fit their schema.

    Raises:
        UnsupportedFeatureError: two tools of one name, or a tool whose schema should guide the answer.
    """
    names: set[str] = set()
    plain = []
    for tool in tools:
        function = tool.function
        if function.name in names:
            raise UnsupportedFeatureError(f"tools names the function {function.name!r} twice; name each once")
        names.add(function.name)
        if function.strict and not is_guided:
            raise UnsupportedFeatureError(
                f"tools asks for strict arguments of {function.name!r}; they are only guided where tool_choice is"
                " required or names a function, leave strict out"
            )
        parameters = function.parameters or {"type": "object", "properties": {}}
        described = {"name": function.name, "description": function.description or "", "parameters": parameters}
        plain.append({"type": "function", "function": described})
    return plain
