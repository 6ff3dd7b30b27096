"""The one place where fields that constrain an answer become constraints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aquiline.errors import InvalidParameterError, UnsupportedFeatureError
from aquiline.guided import GuidedParams
from aquiline.server.protocol.chat import ChatBody
from aquiline.server.protocol.common import GenerationBody
from aquiline.server.protocol.messages import NamedToolChoice

FREE_CHOICES = (None, "none", "auto")
# Beyond this the reader of schemas refuses.
MAX_LEVELS = 200
# Keywords whose values are data rather than schemas.
VALUE_KEYWORDS = ("enum", "const", "default", "example", "examples")
# Keywords whose values name schemas: a name is no keyword, whatever it is.
NAMING_KEYWORDS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
FORMATS = "text, json_object or json_schema"


def guided_params(body: GenerationBody) -> GuidedParams | None:
    """What the answer to `body` has to match; None where it is free.

    Raises:
        InvalidParameterError: a constraint that is not understood, or two of them.
        UnsupportedFeatureError: a response format of another kind.
    """
    asked = [name for name in ("guided_json", "guided_regex", "guided_choice", "guided_grammar") if _has(body, name)]
    asked += ["structured_outputs"] if body.structured_outputs is not None else []
    asked += ["response_format"] if body.response_format not in (None, {"type": "text"}) else []
    asked += ["tool_choice"] if forces_call(body) else []
    if len(asked) > 1:
        raise InvalidParameterError(f"{asked[0]} is given beside {asked[1]}; an answer has one form, give one of them")
    if not asked:
        return None
    if asked[0] == "structured_outputs":
        return _from_structured(body)
    if asked[0] == "response_format":
        assert body.response_format is not None
        return _from_format(body.response_format)
    if asked[0] == "tool_choice":
        assert isinstance(body, ChatBody)
        return GuidedParams(json_schema=call_schema(body))
    kinds = {"guided_json": "json_schema"}
    kind = kinds.get(asked[0], asked[0].removeprefix("guided_"))
    return GuidedParams(**{kind: getattr(body, asked[0])})


def forces_call(body: GenerationBody) -> bool:
    """Whether the answer has to be a call of a tool."""
    return isinstance(body, ChatBody) and body.tool_choice not in FREE_CHOICES


def call_schema(body: ChatBody) -> Mapping[str, Any]:
    """JSON schema of one call of the tools that may be called, `{"name": ..., "arguments": ...}`.

    Raises:
        InvalidParameterError: there are no tools, or the one that is to be called is not among them.
        UnsupportedFeatureError: a choice of another kind.
    """
    choice = body.tool_choice
    tools = [tool.function for tool in body.tools or ()]
    if isinstance(choice, NamedToolChoice):
        tools = [function for function in tools if function.name == choice.function.name]
    elif choice != "required":
        raise UnsupportedFeatureError(
            "tool_choice is of a kind that is not offered here; name one function, or use required"
        )
    if not tools:
        raise InvalidParameterError("tool_choice has to call a function that tools does not hold; add it to tools")
    calls = []
    for index, function in enumerate(tools):
        place = "#/properties/arguments" if len(tools) == 1 else f"#/anyOf/{index}/properties/arguments"
        # Where it now stands it would begin a schema of its own.
        given = {key: value for key, value in (function.parameters or {"type": "object"}).items() if key != "$id"}
        arguments = _moved(given, place)
        properties = {"name": {"const": function.name}, "arguments": arguments}
        required = ["name", "arguments"]
        calls.append({"type": "object", "properties": properties, "required": required, "additionalProperties": False})
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def _moved(node: Any, place: str, num_levels: int = MAX_LEVELS, has_names: bool = False) -> Any:
    """A schema whose references still hold when it is put at `place` in another one.

    Worked example, at `#/properties/arguments`: `#/$defs/a` becomes `#/properties/arguments/$defs/a`.

    Args:
        has_names: the keys of `node` are names of schemas, and no keywords.
    """
    if not num_levels:
        return node
    if isinstance(node, list):
        return [_moved(part, place, num_levels - 1) for part in node]
    if not isinstance(node, Mapping):
        return node
    if has_names:
        return {name: _moved(schema, place, num_levels - 1) for name, schema in node.items()}
    moved = {
        key: value if key in VALUE_KEYWORDS else _moved(value, place, num_levels - 1, key in NAMING_KEYWORDS)
        for key, value in node.items()
    }
    pointer = moved.get("$ref")
    if isinstance(pointer, str) and pointer.startswith("#"):
        moved["$ref"] = place + pointer[1:]
    return moved


def _has(body: GenerationBody, name: str) -> bool:
    return getattr(body, name) is not None


def _from_structured(body: GenerationBody) -> GuidedParams:
    outputs = body.structured_outputs
    assert outputs is not None
    given: dict[str, Any] = {"json_schema": outputs.json_, "regex": outputs.regex, "choice": outputs.choice}
    given |= {"grammar": outputs.grammar, "json_object": bool(outputs.json_object)}
    return GuidedParams(**given, whitespace=outputs.whitespace or "compact")


def _from_format(asked: Mapping[str, Any]) -> GuidedParams:
    kind = asked.get("type")
    allowed = {"type", "json_schema"} if kind == "json_schema" else {"type"}
    if kind not in ("json_object", "json_schema"):
        raise UnsupportedFeatureError(f"response_format has the type {kind!r}; {FORMATS} are offered here")
    _check_keys(asked, allowed, "response_format")
    if kind == "json_object":
        return GuidedParams(json_object=True)
    described = asked.get("json_schema")
    if not isinstance(described, Mapping) or not isinstance(described.get("schema"), Mapping):
        raise InvalidParameterError("response_format has no json_schema with a schema, an object; add it")
    _check_keys(described, {"name", "description", "schema", "strict"}, "response_format.json_schema")
    return GuidedParams(json_schema=described["schema"])


def _check_keys(given: Mapping[str, Any], allowed: Sequence[str] | set[str], place: str) -> None:
    for key in given:
        if key not in allowed:
            raise InvalidParameterError(f"{place} has {key!r}, which is not known here; leave it out")
