"""Text of single outputs: characters over token borders, stop strings, and what may be sent before the end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aquiline.engine.stream import StopMatch, TextStream
from aquiline.token_bytes import IncrementalDecoder

UMLAUT, EAGLE = "ü".encode(), "🦅".encode()
CUTS_OF_UTF8 = st.lists(
    st.sampled_from([b"a", b" ", b"", *(EAGLE[:cut] for cut in (1, 2, 3, 4)), EAGLE[1:], EAGLE[3:], b"\xc3", b"\xbc"])
    | st.binary(max_size=5),
    max_size=12,
)


def decoder_of(pieces: Sequence[bytes], prompt: Sequence[bytes] = (), drops_first_space: bool = False) -> list[str]:
    """What the decoder returns for each piece, and at the end."""
    table = [*prompt, *pieces]
    decoder = IncrementalDecoder(table.__getitem__, range(len(prompt)), drops_first_space)
    return [*(decoder.push(len(prompt) + index) for index in range(len(pieces))), decoder.flush()]


def stream_of(pieces: Sequence[str], stop: Sequence[str] = (), include_stop: bool = False) -> TextStream:
    """A stream in which token i adds the text `pieces[i]`."""
    table = [piece.encode() for piece in pieces]
    return TextStream(IncrementalDecoder(table.__getitem__, ()), stop, include_stop)


@settings(deadline=None)
@given(CUTS_OF_UTF8)
def test_joined_pieces_equal_one_decode(pieces: list[bytes]) -> None:
    assert "".join(decoder_of(pieces)) == b"".join(pieces).decode("utf-8", "replace")


@settings(deadline=None)
@given(st.text(max_size=8), CUTS_OF_UTF8)
def test_output_continues_the_text_of_the_prompt(prompt: str, pieces: list[bytes]) -> None:
    prompt_pieces = [prompt.encode()[start : start + 3] for start in range(0, len(prompt.encode()), 3)]
    whole = b"".join([*prompt_pieces, *pieces]).decode("utf-8", "replace")
    assert prompt + "".join(decoder_of(pieces, prompt_pieces)) == whole


@settings(deadline=None)
@given(CUTS_OF_UTF8, CUTS_OF_UTF8)
def test_any_prompt_is_seen_as_a_whole(prompt: list[bytes], pieces: list[bytes]) -> None:
    """Only the prompt's tail is read; the result is that of a decoder that pushed all of the prompt first."""
    decoder = IncrementalDecoder([*prompt, *pieces].__getitem__, ())
    before = "".join(decoder.push(index) for index in range(len(prompt)))
    after = "".join(decoder.push(len(prompt) + index) for index in range(len(pieces))) + decoder.flush()
    text = "".join(decoder_of(pieces, prompt))
    assert text in (after, after.removeprefix("\ufffd"))
    if before == b"".join(prompt).decode("utf-8", "replace"):
        assert text == after


@settings(deadline=None)
@given(st.text(max_size=12), st.data())
def test_whole_characters_only(text: str, data: st.DataObject) -> None:
    encoded = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(encoded)), max_size=8)))
    pieces = [encoded[start:end] for start, end in zip([0, *cuts], [*cuts, len(encoded)], strict=True)]
    returned = decoder_of(pieces)
    done = b""
    for piece, shown in zip(pieces, returned, strict=False):
        done += piece
        complete = done.decode("utf-8", "ignore")
        assert text.startswith(complete)
        assert complete.endswith(shown)
    assert "".join(returned) == text
    assert returned[-1] == ""


@pytest.mark.parametrize(
    ("prompt", "pieces", "expected"),
    [
        pytest.param([b"a", EAGLE[:2]], [EAGLE[2:], b"b"], ["🦅", "b", ""], id="completed-by-the-output"),
        pytest.param([EAGLE[:1], EAGLE[1:2]], [EAGLE[2:3], EAGLE[3:]], ["", "🦅", ""], id="over-four-tokens"),
        pytest.param([b"\xf0", b"\x9f", b"\xa6"], [EAGLE[3:]], ["🦅", ""], id="three-bytes-in-the-prompt"),
        pytest.param([b"a", EAGLE[:2]], [b"b"], ["b", ""], id="broken-by-the-output"),
        pytest.param([b"a", EAGLE[:2]], [], [""], id="never-continued"),
        pytest.param([b"\xef"], [b"\xbf\xbd", b"x"], ["\ufffd", "x", ""], id="a-real-replacement-character"),
        pytest.param([b"a", b"", b""], [UMLAUT[:1], UMLAUT[1:]], ["", "ü", ""], id="special-tokens-between"),
    ],
)
def test_character_over_the_border_of_the_prompt(prompt: list[bytes], pieces: list[bytes], expected: list[str]) -> None:
    assert decoder_of(pieces, prompt) == expected


@pytest.mark.parametrize(
    ("prompt", "pieces", "expected"),
    [
        pytest.param([], [b" Hello", b" you"], "Hello you", id="no-prompt"),
        pytest.param([b""], [b" Hello"], "Hello", id="prompt-of-hidden-tokens"),
        pytest.param([b""], [b"", b" Hello"], "Hello", id="hidden-token-first"),
        pytest.param([], [b"  Hello"], " Hello", id="only-one-space"),
        pytest.param([], [b" ", b" Hello"], " Hello", id="only-the-first-token"),
        pytest.param([b" Say"], [b" Hello"], " Hello", id="inside-a-text"),
        pytest.param([b" "], [b" Hello"], " Hello", id="prompt-of-one-space"),
    ],
)
def test_first_space_of_sentencepiece(prompt: list[bytes], pieces: list[bytes], expected: str) -> None:
    assert "".join(decoder_of(pieces, prompt, drops_first_space=True)) == expected


def test_work_per_token_does_not_grow_with_the_prompt() -> None:
    num_looked_up = 0

    def look_up(token_id: int) -> bytes:
        nonlocal num_looked_up
        num_looked_up += 1
        return b"abc"

    IncrementalDecoder(look_up, range(1000))
    assert num_looked_up == 1


@pytest.mark.parametrize(
    ("pieces", "stop", "match", "text"),
    [
        pytest.param(["a", "END"], ["END"], StopMatch("END", 1), "a", id="one-token"),
        pytest.param(["a E", "N", "D"], ["END"], StopMatch("END", 2), "a ", id="over-three-tokens"),
        pytest.param(["a", "xENDyEND"], ["END"], StopMatch("END", 2), "ax", id="inside-one-token-first-of-two"),
        pytest.param(["E", "NE", "ND"], ["END"], StopMatch("END", 2), "EN", id="false-start-first"),
        pytest.param(["aab"], ["aab", "ab"], StopMatch("aab", 0), "", id="earliest-start-wins"),
        pytest.param(["xabcd"], ["bc", "abcd"], StopMatch("abcd", 1), "x", id="earliest-start-before-earliest-end"),
        pytest.param(["xab"], ["a", "ab"], StopMatch("ab", 1), "x", id="longest-of-equal-starts"),
        pytest.param(["x\n", "\ny"], ["\n\n"], StopMatch("\n\n", 1), "x", id="newlines"),
        pytest.param(["xEN", "X"], ["END"], None, "xENX", id="no-stop"),
        pytest.param(["x"], [], None, "x", id="no-stop-strings"),
    ],
)
def test_stop_strings(pieces: list[str], stop: list[str], match: StopMatch | None, text: str) -> None:
    stream = stream_of(pieces, stop)
    matches = [stream.push(index) for index in range(len(pieces))]
    assert matches == [*([None] * (len(pieces) - 1)), match]
    assert stream.text == text
    assert stream.is_closed == (match is not None)


def test_stop_string_may_stay_in_the_text() -> None:
    stream = stream_of(["a", "xENDy"], ["END"], include_stop=True)
    stream.push(0)
    assert stream.push(1) == StopMatch("END", 2)
    assert stream.text == stream.releasable_text == "axEND"


def test_stop_string_of_the_prompt_does_not_count() -> None:
    table = [b"END", b"EN", b"D!"]
    stream = TextStream(IncrementalDecoder(table.__getitem__, (0, 1)), ["END"])
    assert stream.push(2) is None
    assert stream.text == "D!"


def test_stop_string_ending_before_it_may_stop_never_counts() -> None:
    stream = stream_of(["xEND", "yE", "ND"], ["END"])
    assert stream.push(0, may_stop=False) is None
    assert stream.push(1) is None
    assert stream.push(2) == StopMatch("END", 5)
    assert stream.text == "xENDy"


def test_stop_string_beginning_before_it_may_stop_counts() -> None:
    stream = stream_of(["xEN", "D"], ["END"])
    stream.push(0, may_stop=False)
    assert stream.releasable_text == "x"
    assert stream.push(1) == StopMatch("END", 1)


def test_held_back_text_is_released_at_the_end() -> None:
    stream = stream_of(["xEN"], ["END"])
    stream.push(0)
    assert stream.releasable_text == "x"
    stream.close()
    assert stream.releasable_text == stream.text == "xEN"


@pytest.mark.parametrize(("include_stop", "text"), [(False, "a"), (True, "a</s>")])
def test_stop_token_shows_only_when_asked_for(include_stop: bool, text: str) -> None:
    stream = stream_of(["a", "</s>"], ["s"], include_stop)
    stream.push(0)
    stream.push_stop_token(1)
    assert stream.text == stream.releasable_text == text
    assert stream.is_closed


def test_incomplete_character_shows_at_the_end() -> None:
    stream = TextStream(IncrementalDecoder([b"a", EAGLE[:3]].__getitem__, ()))
    stream.push(0)
    stream.push(1)
    assert stream.text == "a"
    stream.close()
    stream.close()
    assert stream.text == "a\ufffd"


def first_stop(pieces: Sequence[str], stop: Sequence[str]) -> tuple[int, StopMatch] | None:
    """Written from the definition: the first token that completes a stop string, and the winner among those."""
    text = "".join(pieces)
    num_seen = 0
    for index, piece in enumerate(pieces):
        ends = range(num_seen + 1, num_seen + len(piece) + 1)
        spans = [(end - len(word), -len(word)) for end in ends for word in stop if text[:end].endswith(word)]
        if spans:
            start, negative_length = min(spans)
            return index, StopMatch(text[start : start - negative_length], start)
        num_seen += len(piece)
    return None


@settings(deadline=None)
@given(
    st.lists(st.text("ab", max_size=4), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_stops_and_released_text_follow_their_definitions(pieces: list[str], stop: list[str]) -> None:
    stream = stream_of(pieces, stop)
    expected = first_stop(pieces, stop)
    released = ""
    for index in range(len(pieces)):
        match = stream.push(index)
        assert stream.releasable_text.startswith(released)
        released = stream.releasable_text
        if match is not None:
            assert expected == (index, match)
            break
        assert expected is None or expected[0] > index
        held = stream.text[len(released) :]
        starts = [text for text in stop for length in range(1, len(text)) if stream.text.endswith(text[:length])]
        assert bool(held) == bool(starts)
        assert not held or any(text.startswith(held) and text != held for text in stop)
    stream.close()
    assert stream.text == ("".join(pieces) if expected is None else "".join(pieces)[: expected[1].start])
    assert stream.text.startswith(released)
    assert not any(word in stream.text for word in stop)
