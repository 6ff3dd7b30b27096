"""Nested settings as one level of names, which can be compared and named one by one."""

from __future__ import annotations


def by_dotted_names(value: object, prefix: str = "") -> dict[str, object]:
    """Settings by dotted names, entries of lists of objects by their number; a list of plain values is one setting.

    Args:
        value: as JSON holds it.

    Worked example:

        {"seed": 1, "stages": [{"ttt_steps": 3}], "layers": [2, 5]}
        {"seed": 1, "stages.0.ttt_steps": 3, "layers": [2, 5]}
    """
    if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, object] = {}
    for name, entry in value.items():
        flat |= by_dotted_names(entry, f"{prefix}.{name}" if prefix else str(name))
    return flat
