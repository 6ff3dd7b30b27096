"""The `aquiline` command."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (the process's own when None) and return its exit status."""
    try:
        # Loading what the commands need takes a while, in which an interrupt is as quiet as later.
        from aquiline.cli import app
    except KeyboardInterrupt:
        return 130
    return app.main(argv)
