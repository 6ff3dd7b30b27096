"""Prompts on which heads are measured; they are never trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HELD_OUT_PROMPTS = Path(__file__).with_name("held_out_prompts.jsonl")
NO_CATEGORY = "other"


@dataclass(frozen=True)
class EvaluationPrompt:
    """A conversation to answer, and the kind of task it is."""

    category: str
    messages: tuple[Mapping[str, Any], ...]


def held_out_prompts() -> tuple[EvaluationPrompt, ...]:
    """The prompts that come with Aquiline: eight each of chat, code, maths, question answering, summarising,
    translation and extraction."""
    lines = HELD_OUT_PROMPTS.read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    return tuple(
        EvaluationPrompt(entry["category"], ({"role": "user", "content": entry["prompt"]},)) for entry in entries
    )
