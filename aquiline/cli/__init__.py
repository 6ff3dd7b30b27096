"""The `aquiline` command."""

from aquiline.cli.app import main

__all__ = ["main"]
