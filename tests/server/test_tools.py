"""Calls found in text: which, and the same however the text is cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aquiline.server.tools.events import ArgumentsEvent, CallEvent, ContentEvent, ToolParser
from aquiline.server.tools.hermes import HermesParser
from aquiline.server.tools.llama3 import Llama3Parser

NAMES = frozenset({"f", "get_weather"})
PARSERS: dict[str, Callable[[Set[str]], ToolParser]] = {"hermes": HermesParser, "llama3": Llama3Parser}


@dataclass
class Found:
    """What a parser told about a text."""

    content: str = ""
    calls: list[list[str]] = field(default_factory=list)


def parse(parser: ToolParser, pieces: Sequence[str]) -> Found:
    found = Found()
    for events in [*map(parser.push, pieces), parser.finish()]:
        for event in events:
            if isinstance(event, ContentEvent):
                found.content += event.text
            elif isinstance(event, CallEvent):
                assert event.index == len(found.calls)
                found.calls.append([event.name, ""])
            else:
                assert isinstance(event, ArgumentsEvent)
                found.calls[event.index][1] += event.text
    return found


HERMES = [
    ("no call at all", "no call at all", []),
    ("  spaces stay  ", "  spaces stay  ", []),
    ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "", [["f", '{"a": 1}']]),
    ('Let me see.\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\n', "Let me see.", [["f", "{}"]]),
    ('<tool_call>{"arguments": {"a": "}"}, "name": "f"}</tool_call>', "", [["f", '{"a": "}"}']]),
    ('<tool_call>{"name": "f"}</tool_call>', "", [["f", "{}"]]),
    ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [["f", "{}"]]),
    (r'<tool_call>{"name": "f", "arguments": "{\"a\": 2}"}</tool_call>', "", [["f", '{"a": 2}']]),
    (
        '<tool_call>{"name": "f", "arguments": {"x": [1, {"y": "</tool_call>"}]}}</tool_call>'
        '\n<tool_call>{"id": 7, "name": "get_weather", "arguments": {}}</tool_call>then text',
        "then text",
        [["f", '{"x": [1, {"y": "</tool_call>"}]}'], ["get_weather", "{}"]],
    ),
    ('<tool_call>{"name": "f", "arguments": {}}}</tool_call>', "", [["f", "{}"]]),
    ('<tool_call>{"name": "f", "arguments": {}} and so on', "and so on", [["f", "{}"]]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1', "", [["f", '{"a": 1']]),
    ('<tool_call>{"name": "f", "argu', '<tool_call>{"name": "f", "argu', []),
    ("write <tool_call> before a call", "write <tool_call> before a call", []),
    ("a <tool_cal", "a <tool_cal", []),
    ("a <tool_<tool_call", "a <tool_<tool_call", []),
    ('<tool_call>{"name": "g"}</tool_call>', '<tool_call>{"name": "g"}</tool_call>', []),
    ('<tool_call>[1]</tool_call>', "<tool_call>[1]</tool_call>", []),
    ('<tool_call><tool_call>{"name": "f"}</tool_call>', "<tool_call>", [["f", "{}"]]),
    ('<tool_call>{"name": 5, "arguments": {}}', '<tool_call>{"name": 5, "arguments": {}}', []),
]  # fmt: skip
LLAMA3 = [
    ("plain", "plain", []),
    (" \n plain {", " \n plain {", []),
    ('{"name": "f", "parameters": {"a": "{"}}', "", [["f", '{"a": "{"}']]),
    ('\n<|python_tag|>{"name": "f", "parameters": {}}', "", [["f", "{}"]]),
    ('{"name": "f", "parameters": {}}; {"name": "get_weather", "parameters": {"b": [1]}}', "",
     [["f", "{}"], ["get_weather", '{"b": [1]}']]),
    ('{"name": "f", "parameters": {}} Done.', "Done.", [["f", "{}"]]),
    ('{"answer": 42}', '{"answer": 42}', []),
    ('{"name": "Eve", "parameters": {}}', '{"name": "Eve", "parameters": {}}', []),
    ('  {"name": "f"', '  {"name": "f"', []),
    ("<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    ("<|pyth", "<|pyth", []),
    ("", "", []),
]  # fmt: skip
CASES = [("hermes", *case) for case in HERMES] + [("llama3", *case) for case in LLAMA3]


@pytest.mark.parametrize(("kind", "text", "content", "calls"), CASES)
def test_what_is_found(kind: str, text: str, content: str, calls: list[list[str]]) -> None:
    assert parse(PARSERS[kind](NAMES), [text]) == Found(content, calls)
    assert parse(PARSERS[kind](NAMES), list(text)) == Found(content, calls)


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A text of parts that matter, and the same text in pieces."""
    parts = ["<tool_call>", "</tool_call>", '{"name": "f", ', '"arguments": ', '{"a": "}"}', "}", "{", '"', " ", "\n"]
    parts += ["<", "tool", "\\", "[", "]", ";", ",", ":", "null", "7", '{"name": "f", "parameters": {"x": 1}}', "é"]
    text = "".join(draw(st.lists(st.sampled_from(parts), max_size=12)))
    pieces = []
    rest = text
    while rest:
        length = draw(st.integers(1, len(rest)))
        pieces.append(rest[:length])
        rest = rest[length:]
    return text, pieces


@pytest.mark.parametrize("kind", list(PARSERS))
@given(cut=cut_texts())
def test_cutting_changes_nothing(kind: str, cut: tuple[str, list[str]]) -> None:
    text, pieces = cut
    assert parse(PARSERS[kind](NAMES), pieces) == parse(PARSERS[kind](NAMES), [text])


@pytest.mark.parametrize("kind", list(PARSERS))
@given(text=st.text(alphabet=st.characters(exclude_characters="<{"), max_size=30))
def test_text_without_calls_stays_as_it_is(kind: str, text: str) -> None:
    assert parse(PARSERS[kind](NAMES), list(text)) == Found(text, [])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(arguments=st.dictionaries(st.text(max_size=6), JSON, max_size=4), indent=st.sampled_from([None, 2]))
def test_arguments_come_as_they_were_written(arguments: object, indent: int | None) -> None:
    written = json.dumps(arguments, indent=indent)
    hermes = f'<tool_call>\n{{"name": "f", "arguments": {written}}}\n</tool_call>'
    assert parse(HermesParser(NAMES), list(hermes)) == Found("", [["f", written]])
    llama3 = f'{{"name": "f", "parameters": {written}}}'
    assert parse(Llama3Parser(NAMES), list(llama3)) == Found("", [["f", written]])
