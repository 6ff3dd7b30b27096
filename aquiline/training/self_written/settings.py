"""How the target writes conversations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from aquiline.errors import InvalidParameterError
from aquiline.request import MAX_COUNT, MAX_SEED

# Share of the answer tokens that each kind of conversation gets. Texts written under `writing` and `other languages`
# are the material of the tasks about a text.
SHARES: Mapping[str, float] = MappingProxyType(
    {
        "chat": 0.14,
        "writing": 0.13,
        "code": 0.15,
        "maths": 0.12,
        "question answering": 0.12,
        "summarising": 0.12,
        "extraction": 0.06,
        "translation": 0.08,
        "rewriting": 0.05,
        "other languages": 0.03,
    }
)
ANSWER_TEMPERATURES = ((0.0, 0.35), (0.4, 0.1), (0.7, 0.2), (1.0, 0.35))


@dataclass(frozen=True)
class SelfWrittenSettings:
    """What decides which conversations are written; a run that goes on must be told the same again.

    Attributes:
        seed: of every random choice, in [0, 2**63).
        num_turns_per_round: conversations begun in a round; a round is what a run that was killed repeats.
        max_answer_tokens: where answers are cut off. A cut answer is kept: each of its tokens is the target's own.
        max_user_tokens: longest turn that the target writes as the user; longer ones are dropped.
        user_temperature: at which it does.
        follow_up_share: of the conversations that get a second question and answer.
        held_out_share: of the conversations that are put aside for evaluation.
    """

    seed: int = 0
    num_turns_per_round: int = 512
    max_answer_tokens: int = 320
    max_user_tokens: int = 120
    user_temperature: float = 0.8
    follow_up_share: float = 0.1
    held_out_share: float = 0.01
    shares: Mapping[str, float] = field(default_factory=lambda: SHARES)

    def __post_init__(self) -> None:
        for name, highest in (
            ("seed", MAX_SEED),
            ("num_turns_per_round", MAX_COUNT),
            ("max_answer_tokens", MAX_COUNT),
            ("max_user_tokens", MAX_COUNT),
        ):
            value, lowest = getattr(self, name), 0 if name == "seed" else 1
            if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
                raise InvalidParameterError(f"{name} is {value!r}; it must be an integer from {lowest} to {highest}")
        for name, most in (("user_temperature", 2.0), ("follow_up_share", 1.0), ("held_out_share", 0.5)):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0.0 <= value <= most:
                raise InvalidParameterError(f"{name} is {value!r}; it must be a number from 0 to {most:g}")
        if set(self.shares) - set(SHARES) or not all(share >= 0 for share in self.shares.values()):
            raise InvalidParameterError(f"shares is {dict(self.shares)}; it may hold shares of {', '.join(SHARES)}")

    def described(self) -> dict[str, object]:
        """The settings as JSON can hold them."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return values | {"shares": dict(self.shares)}
