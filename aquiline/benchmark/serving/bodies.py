"""The requests of a load: which prompts, in which order, with which fields."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aquiline.benchmark.serving.endpoint import EndpointKind

Message = Mapping[str, Any]


@dataclass(frozen=True)
class RequestSettings:
    """What every request asks for.

    Attributes:
        model: as the server calls it.
        seed: of the order of the prompts, and of sampling at temperatures above 0.
        repeats_prompts: prompts stay as they are, so that a server finds them in its cache when they come again.
        extra: more fields of a body, which win over all others.
    """

    model: str
    kind: EndpointKind = "chat"
    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    ignores_eos: bool = False
    repeats_prompts: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


def request_bodies(
    conversations: Sequence[Sequence[Message]], settings: RequestSettings, num_requests: int, first_number: int = 0
) -> list[dict[str, Any]]:
    """Bodies of requests for one load.

    All prompts are asked in an order drawn with the seed, then all of them again in another one, and so on. Every load
    begins with the same order. Unless prompts are repeated, each begins with the number of its request, which no other
    request has, so that no cache knows more of it than the template's beginning.

    Args:
        first_number: requests of earlier loads.
    """
    generator = random.Random(f"prompts {settings.seed}")
    order: list[int] = []
    while len(order) < num_requests:
        order += generator.sample(range(len(conversations)), len(conversations))
    return [
        _body(conversations[index], settings, first_number + number)
        for number, index in enumerate(order[:num_requests])
    ]


def _body(messages: Sequence[Message], settings: RequestSettings, number: int) -> dict[str, Any]:
    if not settings.repeats_prompts:
        first, *others = messages
        messages = [{**first, "content": f"Question {number + 1}.\n{first['content']}"}, *others]
    body: dict[str, Any] = {
        "model": settings.model,
        "max_tokens": settings.max_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
    }
    if settings.kind == "chat":
        body["messages"] = list(messages)
    else:
        body["prompt"] = messages[-1]["content"]
    # Servers draw slower for a request with a seed, and at temperature 0 it changes nothing.
    if settings.temperature > 0.0:
        body["seed"] = settings.seed + number
    # Not OpenAI's, so that it is only sent where it is wanted.
    if settings.ignores_eos:
        body["ignore_eos"] = True
    return body | dict(settings.extra)
