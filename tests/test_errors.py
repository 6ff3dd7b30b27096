"""Errors of users: one line, whatever it quotes."""

from __future__ import annotations

import pytest

from aquiline.errors import ModelFormatError, UserError


@pytest.mark.parametrize("text", ["a\nb", "a\r\x0bb", "a\x1b[31mb", "a\u2028b", "a\udc80b", "a\u202eb"])
def test_a_message_stays_on_one_line_and_shows_what_it_cannot_print(text: str) -> None:
    shown = str(ModelFormatError(f"unknown key {text}; remove it"))
    assert shown.isprintable() and shown.startswith("unknown key a\\") and shown.endswith("b; remove it")
    assert len(shown.splitlines()) == 1


def test_printable_text_of_any_language_stays_as_it_is() -> None:
    assert str(UserError("Schlüssel „größer“ 鍵")) == "Schlüssel „größer“ 鍵"
