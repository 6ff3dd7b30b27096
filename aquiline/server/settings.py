"""What a server is told, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from aquiline.errors import InvalidParameterError

ToolFormat = Literal["auto", "hermes", "llama3"]
LogFormat = Literal["json", "text"]
MAX_SECONDS = 7 * 24 * 3600.0


@dataclass(frozen=True)
class ServerSettings:
    """Settings of the server; those of the engine are an EngineConfig.

    Attributes:
        host, port: where to listen; port 0 takes a free one.
        served_model_name: what clients call the model; None: the name it was loaded by.
        api_keys: any of them opens the server; empty lets everybody in.
        max_queue: most answers that wait for their first step beside those that run; more are refused with 429.
        max_body_bytes: longest body of a request.
        request_body_timeout: seconds within which a request has to arrive, its body included; 0 never mind.
        max_connections: most connections that are open; one more closes the one that has sent nothing for the longest
            time, or is turned away with 503 where all are being answered.
        max_answers: most answers that one body may ask for: its prompts times `n`.
        request_timeout: seconds after which an unfinished request is ended; 0 never.
        drain_timeout: seconds that running requests get to finish when the server is told to stop.
        tool_format: how the model writes tool calls; `auto` looks at its chat template.
        log_format: lines of JSON or of text, on standard error.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    api_keys: tuple[str, ...] = ()
    max_queue: int = 256
    max_body_bytes: int = 8 * 2**20
    request_body_timeout: float = 30.0
    max_connections: int = 512
    max_answers: int = 128
    request_timeout: float = 600.0
    drain_timeout: float = 30.0
    tool_format: ToolFormat = "auto"
    log_format: LogFormat = "json"

    def __post_init__(self) -> None:
        if not isinstance(self.host, str) or not self.host:
            raise InvalidParameterError(f"host is {self.host!r}; it must be an address such as 127.0.0.1 or 0.0.0.0")
        if self.served_model_name is not None and not self.served_model_name:
            raise InvalidParameterError("served_model_name is empty; give a name, or leave it out")
        for key in self.api_keys:
            if not isinstance(key, str) or not key or not key.isprintable() or not key.isascii() or " " in key:
                raise InvalidParameterError(
                    "an API key is empty or holds spaces or characters outside ASCII; use letters, digits, - and _"
                )
        _check_int("port", self.port, 0, 65535)
        _check_int("max_queue", self.max_queue, 0, 2**20)
        _check_int("max_body_bytes", self.max_body_bytes, 1, 2**30)
        _check_int("max_answers", self.max_answers, 1, 1024)
        _check_int("max_connections", self.max_connections, 1, 2**16)
        for name in ("request_body_timeout", "request_timeout", "drain_timeout"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not is_number or not 0 <= value <= MAX_SECONDS:
                raise InvalidParameterError(f"{name} is {value!r}; it must be seconds, from 0 to {MAX_SECONDS:.0f}")
        if self.tool_format not in get_args(ToolFormat):
            raise InvalidParameterError(f"tool_format is {self.tool_format!r}; it must be auto, hermes or llama3")
        if self.log_format not in get_args(LogFormat):
            raise InvalidParameterError(f"log_format is {self.log_format!r}; it must be json or text")


def _check_int(name: str, value: object, lowest: int, highest: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise InvalidParameterError(f"{name} is {value!r}; it must be an integer from {lowest} to {highest}")
