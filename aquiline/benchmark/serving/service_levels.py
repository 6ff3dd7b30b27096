"""What a service promises, and whether an answer kept it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from aquiline.errors import InvalidParameterError

MEASURES = ("ttft", "tpot", "e2el")


@dataclass(frozen=True)
class ServiceLevels:
    """Limits in milliseconds, by measure: `ttft`, `tpot` and `e2el`."""

    limits_ms: Mapping[str, float]

    @property
    def text(self) -> str:
        """As it is typed."""
        return ",".join(f"{name}:{limit:g}" for name, limit in self.limits_ms.items())

    def are_met(self, measured_ms: Mapping[str, float | None]) -> bool:
        """Whether every limit is kept; a measure that an answer does not have, such as TPOT of one token, is kept."""
        return all((measured_ms[name] or 0.0) <= limit for name, limit in self.limits_ms.items())


def parse_service_levels(text: str) -> ServiceLevels:
    """Parse `ttft:500,tpot:50`.

    Raises:
        InvalidParameterError: another form, an unknown measure, one given twice, or a limit that is not positive.
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition(":")
        is_number = re.fullmatch(r"[0-9.]+", value) is not None and value.count(".") <= 1 and value != "."
        limit = float(value) if is_number else math.nan
        if name not in MEASURES or name in limits or not limit > 0.0:
            raise InvalidParameterError(
                f"--slo is {text!r}; it must be milliseconds for some of {', '.join(MEASURES)}, each once, for example "
                "ttft:500,tpot:50"
            )
        limits[name] = limit
    return ServiceLevels(limits)
