"""Prompts on which a model goes on as the user: the chat template, cut where the user begins to speak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aquiline.errors import TrainingDataError
from aquiline.tokenizer import Tokenizer

# Stands where the user's text will be; no template and no conversation has it.
MARK = "\u2060user\u2060speaks\u2060"


@dataclass(frozen=True)
class UserTurnPrompt:
    """What the model continues in order to write a user's turn, and what ends that turn.

    Attributes:
        token_ids: the template up to the turn, and its given beginning.
        stop: text that the template puts behind a user's turn; None where it begins with a special token.
        stop_token_id: that special token.
    """

    token_ids: tuple[int, ...]
    stop: str | None
    stop_token_id: int | None


def user_turn_prompt(
    tokenizer: Tokenizer, beginning: str = "", earlier: Sequence[Mapping[str, Any]] = ()
) -> UserTurnPrompt:
    """The prompt on which the model writes the next turn of the user.

    Args:
        beginning: what the user has said already.
        earlier: the conversation so far.

    Raises:
        TrainingDataError: the template drops what a user says, or changes it.
        PromptError: there is no template, or it refuses the conversation.
    """
    text = tokenizer.render_chat([*earlier, {"role": "user", "content": MARK}], add_generation_prompt=True)
    before, found, after = text.rpartition(MARK)
    if not found:
        raise TrainingDataError("the chat template drops what the user says, so that the model cannot write it")
    token_ids = tokenizer.encode(before + beginning, add_special_tokens=False)
    following = tokenizer.encode(after.lstrip(), add_special_tokens=False)
    if following and following[0] in tokenizer.special_token_ids:
        return UserTurnPrompt(tuple(token_ids), None, following[0])
    lines = after.strip().splitlines()
    return UserTurnPrompt(tuple(token_ids), lines[0] if lines else "\n\n", None)
