"""Streams put together again, to be compared with whole answers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import httpx


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, which ends as it should."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    parts = response.text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    assert all(part.startswith("data: ") and "\n" not in part for part in parts[:-1])
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


def fold_chat(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The choices that a stream of chat events adds up to, in the form of a whole answer."""
    folded: dict[int, dict[str, Any]] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        total = folded.setdefault(
            choice["index"], {"content": "", "calls": [], "logprobs": None, "finish_reason": None, "stop_reason": None}
        )
        assert total["finish_reason"] is None, "nothing comes after the end"
        delta = choice["delta"]
        total["content"] += delta.get("content", "")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(total["calls"]) and call["type"] == "function"
                total["calls"].append([call["function"]["name"], ""])
            total["calls"][call["index"]][1] += call["function"]["arguments"]
        if choice["logprobs"] is not None:
            total["logprobs"] = (total["logprobs"] or []) + choice["logprobs"]["content"]
        total["finish_reason"] = choice["finish_reason"]
        total["stop_reason"] = choice.get("stop_reason")
    return [folded[index] for index in sorted(folded)]


def plain_chat(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices of a whole chat answer in the same form."""
    return [
        {
            "content": choice["message"]["content"] or "",
            "calls": [
                [call["function"]["name"], call["function"]["arguments"]]
                for call in choice["message"].get("tool_calls", ())
            ],
            "logprobs": choice["logprobs"] and choice["logprobs"]["content"],
            "finish_reason": choice["finish_reason"],
            "stop_reason": choice["stop_reason"],
        }
        for choice in body["choices"]
    ]


def fold_completion(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The choices that a stream of completion events adds up to."""
    folded: dict[int, dict[str, Any]] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        total = folded.setdefault(choice["index"], {"text": "", "logprobs": None, "finish_reason": None})
        assert total["finish_reason"] is None, "nothing comes after the end"
        total["text"] += choice["text"]
        if choice["logprobs"] is not None:
            total["logprobs"] = total["logprobs"] or {name: [] for name in choice["logprobs"]}
            for name, values in choice["logprobs"].items():
                total["logprobs"][name] += values
        total["finish_reason"] = choice["finish_reason"]
        total["stop_reason"] = choice.get("stop_reason")
    return [folded[index] for index in sorted(folded)]


def plain_completion(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices of a whole completion in the same form."""
    names = ("text", "logprobs", "finish_reason", "stop_reason")
    return [{name: choice[name] for name in names} for choice in body["choices"]]
