"""Events hold one line, whatever text is in them."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from aquiline.server.sse import event


@given(text=st.text() | st.text(alphabet="\x00\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\x7fé🦅"))
def test_an_event_is_one_line_for_every_client(text: str) -> None:
    lines = event({"content": text}).decode().splitlines()
    assert lines[1:] == [""]
    assert json.loads(lines[0].removeprefix("data: ")) == {"content": text}
