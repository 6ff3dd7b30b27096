"""Events do not depend on how their bytes were cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from aquiline.benchmark.serving.event_reader import EventReader

PAYLOADS = st.lists(st.text(alphabet="aé{ :\u2028", min_size=1).map(lambda text: text.strip()).filter(bool), max_size=4)


@given(payloads=PAYLOADS, line_end=st.sampled_from([b"\n", b"\r\n", b"\r"]), cuts=st.lists(st.integers(0, 200)))
def test_any_cut_gives_the_same_events(payloads: list[str], line_end: bytes, cuts: list[int]) -> None:
    stream = b"".join(b": note" + line_end + b"data: " + text.encode() + 2 * line_end for text in payloads)
    # A carriage return that ends the stream may be half of a line end, so something has to follow it.
    stream += b": end" + line_end + b":"
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = EventReader()
    found = [event for a, b in pairwise(places) for event in reader.feed(stream[a:b])]
    assert found == [text.encode() for text in payloads]


def test_other_fields_are_left_alone_and_lines_of_data_are_joined() -> None:
    reader = EventReader()
    assert reader.feed(b"event: x\nid: 1\ndata:one\ndata:  two\n") == []
    assert reader.feed(b"\n\nretry: 5\n\n") == [b"one\n two"]


def test_the_worked_example() -> None:
    reader = EventReader()
    assert [reader.feed(piece) for piece in (b"data: a", b"b\n\ndata", b": c\n\n")] == [[], [b"ab"], [b"c"]]
