"""The one place where fields that constrain an answer become constraints; none is offered yet."""

from __future__ import annotations

from aquiline.errors import UnsupportedFeatureError
from aquiline.server.protocol.chat import ChatBody
from aquiline.server.protocol.completions import CompletionBody

FREE_CHOICES = (None, "none", "auto")


def refuse_guided_fields(body: ChatBody | CompletionBody) -> None:
    """Refuse what only guided decoding could honour.

    Raises:
        UnsupportedFeatureError: a response format other than text, or a tool choice that has to force a call.
    """
    if body.response_format is not None and body.response_format != {"type": "text"}:
        raise UnsupportedFeatureError(
            f"response_format has the type {body.response_format.get('type')!r}; answers are not guided here, so that"
            " only text is offered: leave it out, and describe the format in a message"
        )
    if isinstance(body, ChatBody) and body.tool_choice not in FREE_CHOICES:
        raise UnsupportedFeatureError(
            "tool_choice forces a tool call, which only guided answers could promise; use auto or none"
        )
