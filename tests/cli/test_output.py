from __future__ import annotations

import dataclasses
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aquiline.cli.output import AnswerPrinter, InOrder, JsonPrinter, RunSeconds, StreamPrinter, figures, write
from aquiline.request import CompletionOutput, FinishReason, RequestOutput
from aquiline.speculation_figures import SpeculationFigures


def output(text: str, is_finished: bool = True, num_steps: int = 2) -> RequestOutput:
    speculation = SpeculationFigures(num_steps, 8, len(text) - num_steps, len(text), 0.25)
    finish_reason = FinishReason.STOP if is_finished else None
    completion = CompletionOutput(0, text, tuple(range(len(text))), None, finish_reason, None, speculation)
    return RequestOutput("r", "prompt", (1, 2, 3), None, (completion,), 5, 0, is_finished)


@given(st.integers(1, 6).flatmap(lambda count: st.permutations(range(count))))
def test_any_order_of_finishing_is_handed_out_in_order_and_as_early_as_possible(finishing: list[int]) -> None:
    waiting = InOrder()
    handed_out: list[int] = []
    for place, index in enumerate(finishing):
        assert waiting.push(index, output("x", is_finished=False)) == []
        handed_out += [ready for ready, _ in waiting.push(index, output("x"))]
        done = set(finishing[: place + 1])
        expected = next(count for count in range(len(finishing) + 1) if count not in done)
        assert handed_out == list(range(expected))
        assert waiting.push(index, output("x")) == []


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.data())
def test_a_stream_shows_each_character_once(text: str, data: st.DataObject) -> None:
    stream = io.StringIO(newline="")
    printer = StreamPrinter(stream)
    for length in sorted(data.draw(st.lists(st.integers(0, len(text))))):
        printer.update(0, output(text[:length], is_finished=False))
        assert stream.getvalue() == text[:length]
    printer.close([output(text)], RunSeconds(1.0))
    shown, _, last_line = stream.getvalue().removesuffix("\n").rpartition("\n")
    assert shown == text.removesuffix("\n")
    assert last_line.startswith("[")


def test_figures_are_pooled_over_answers() -> None:
    outputs = [output("x" * 30, num_steps=10), output("x" * 10, num_steps=10)]
    expected = "[40 committed tokens, acceptance length 2.00, 12.50 ms per committed token, 20.0 tokens/s]"
    assert figures(outputs, RunSeconds(2.0)) == expected


def test_compiling_a_guide_is_told_apart() -> None:
    shown = figures([output("x" * 30, num_steps=10)], RunSeconds(2.0, compiling=0.456))
    assert shown.endswith(" 15.0 tokens/s; compiling the guide took 0.46 s]")


def test_figures_of_nothing_do_not_divide_by_zero() -> None:
    expected = "[0 committed tokens, acceptance length 0.00, 0.00 ms per committed token, 0.0 tokens/s]"
    assert figures([], RunSeconds(0.0)) == expected


def test_a_header_quotes_a_long_prompt_on_one_line() -> None:
    stream = io.StringIO()
    AnswerPrinter(stream, ["a\nb " + "c" * 100]).update(0, output("answer\n"))
    assert stream.getvalue() == f"== 1 of 1: a b {'c' * 67}…\nanswer\n\n"


def test_samples_are_numbered_in_their_headers() -> None:
    single = output("answer")
    second = dataclasses.replace(single.outputs[0], index=1)
    stream = io.StringIO()
    AnswerPrinter(stream, ["why"]).update(0, dataclasses.replace(single, outputs=(single.outputs[0], second)))
    headers = [line for line in stream.getvalue().splitlines() if line.startswith("==")]
    assert headers == ["== 1 of 1, answer 1 of 2: why", "== 1 of 1, answer 2 of 2: why"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_json_survives_any_encoding(encoding: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    JsonPrinter(stream, num_samples=1).update(0, output("Ωé🦅"))
    stream.seek(0)
    assert json.loads(stream.read())["text"] == "Ωé🦅"


def test_text_that_the_terminal_lacks_becomes_question_marks() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    write(stream, "an 🦅\n")
    stream.seek(0)
    assert stream.read() == "an ?\n"


@pytest.mark.parametrize("reason", [None, 7, "END"])
def test_json_tells_what_ended_an_answer(reason: int | str | None) -> None:
    finished = output("answer")
    ended = dataclasses.replace(finished.outputs[0], stop_reason=reason)
    stream = io.StringIO()
    JsonPrinter(stream, num_samples=1).update(0, dataclasses.replace(finished, outputs=(ended,)))
    assert json.loads(stream.getvalue())["stop_reason"] == reason
