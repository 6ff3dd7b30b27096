"""What can go wrong with a request, and how HTTP says it.

Clients get `{"error": {"message", "type", "param", "code"}}`, the body that OpenAI's client reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aquiline.errors import AquilineError, PromptError, UserError

MAX_QUOTED = 80
BRANCHES = {"str", "int", "float", "bool", "none"}


class ServerBusyError(AquilineError):
    """The queue is full.

    Attributes:
        retry_after_seconds: when to ask again.
    """

    def __init__(self, message: str, retry_after_seconds: int) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ServerStoppingError(AquilineError):
    """The server takes no requests any more."""


class RequestTimeoutError(AquilineError):
    """The request took longer than the server allows."""


class EngineFaultError(AquilineError):
    """The engine failed in a step of this request."""


class EngineGivenUpError(AquilineError):
    """The engine failed in too many steps on end, and no request will be answered any more."""


class ContextLengthError(PromptError):
    """A prompt leaves no room for an answer."""


class ModelNotServedError(AquilineError):
    """The body names a model that is not served here."""


@dataclass(frozen=True)
class Failure:
    """One answer of HTTP to something that went wrong.

    Attributes:
        kind: the error's `type` in the body.
    """

    status: int
    message: str
    kind: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def late_failure(seconds: float) -> Failure:
    """How HTTP says that a request took too long to arrive."""
    message = (
        f"the request did not arrive within {seconds:g} seconds, which is the limit of this server; send it faster"
    )
    return Failure(408, message, "timeout_error", code="request_too_slow", headers={"Connection": "close"})


def failure_of(error: AquilineError) -> Failure:
    """How HTTP says `error`."""
    message = str(error)
    if isinstance(error, ContextLengthError):
        return Failure(400, message, "invalid_request_error", code="context_length_exceeded")
    if isinstance(error, UserError):
        return Failure(400, message, "invalid_request_error", _named_field(message))
    if isinstance(error, ModelNotServedError):
        return Failure(404, message, "invalid_request_error", "model", "model_not_found")
    if isinstance(error, ServerBusyError):
        headers = {"Retry-After": str(error.retry_after_seconds)}
        return Failure(429, message, "server_busy_error", code="server_busy", headers=headers)
    if isinstance(error, ServerStoppingError):
        return Failure(503, message, "server_stopping_error", code="server_stopping", headers={"Retry-After": "1"})
    if isinstance(error, EngineGivenUpError):
        return Failure(503, message, "server_error", code="engine_failed")
    if isinstance(error, RequestTimeoutError):
        return Failure(504, message, "timeout_error", code="request_timeout")
    return Failure(500, "the engine failed while it answered this request; ask again", "server_error")


def describe_invalid(errors: list[Mapping[str, Any]]) -> Failure:
    """One line about the first of pydantic's complaints about a body, naming the field."""
    first = errors[0]
    if first["type"] == "string_type" and isinstance(first.get("input"), list):
        # The field takes texts and lists: what is wrong within the list says more than that it is no text.
        first = max(
            (error for error in errors if _path(error)[0] == _path(first)[0]), key=lambda error: len(_path(error))
        )
    path = _path(first)
    param = ".".join(path) or None
    kind, message = first["type"], str(first["msg"])
    if kind == "extra_forbidden":
        text = f"{param}: this server knows no such field; see docs/server.md for those it knows"
    elif kind == "json_invalid":
        reason = str(first.get("ctx", {}).get("error", "")) or "it cannot be read"
        place = f" at character {path[0]}" if path else ""
        text = f"the body is not valid JSON: {reason[:1].lower()}{reason[1:]}{place}"
        return Failure(400, " ".join(text.split()), "invalid_request_error")
    elif kind == "too_short" and first.get("input") == []:
        text = f"{param or 'the body'} is empty; give at least {first['ctx']['min_length']}"
    elif kind == "missing":
        text = f"{param or 'the body'} is missing"
    elif kind == "model_attributes_type" and isinstance(first.get("input"), bytes):
        text = "the body is not said to be JSON; send it with the header Content-Type: application/json"
    else:
        if kind == "model_attributes_type":
            message = "input should be an object"
        text = f"{param or 'the body'}: {message[:1].lower()}{message[1:]}, not {_quoted(first.get('input'))}"
    return Failure(400, " ".join(text.split()), "invalid_request_error", param)


def _path(error: Mapping[str, Any]) -> list[str]:
    """The fields and indices that lead to what is wrong."""
    return [str(part) for part in error["loc"][1:] if not _is_branch(part)]


def _is_branch(part: object) -> bool:
    """Whether a part of a location names a branch of a union rather than a field."""
    return isinstance(part, str) and (part in BRANCHES or "[" in part or part[:1].isupper())


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "..."


def _named_field(message: str) -> str | None:
    """The field that a message of ours begins with, as in `temperature is -1; it must ...`."""
    match = re.match(r"([a-z]+(?:_[a-z]+)*)(?:\[[^\]]*\])? (?:is|names|has) ", message)
    return match[1] if match and match[1] not in ("there", "prompt") else None
