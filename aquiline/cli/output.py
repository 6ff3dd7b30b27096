"""How answers are shown while they grow and when they are complete."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Protocol, TextIO

from rich.console import Console, RenderableType

from aquiline.errors import UserError
from aquiline.request import CompletionOutput, RequestOutput, TokenLogprob

HEADER_WIDTH = 72


@dataclass(frozen=True, slots=True)
class RunSeconds:
    """What a run took.

    Attributes:
        answering: from the prompts to the last answer, without compiling.
        compiling: its guide; None without one.
    """

    answering: float
    compiling: float | None = None


class Printer(Protocol):
    """Shows the outputs of one run."""

    def update(self, index: int, output: RequestOutput) -> None:
        """Prompt number `index` has grown to `output`, which is cumulative."""

    def close(self, outputs: Sequence[RequestOutput], seconds: RunSeconds) -> None:
        """All prompts are answered."""


class JsonPrinter:
    """One JSON object per answer and line, in prompt order, as soon as every earlier prompt is complete."""

    def __init__(self, stream: TextIO, num_samples: int) -> None:
        self._stream = stream
        self._has_sample_index = num_samples > 1
        self._waiting = InOrder()

    def update(self, index: int, output: RequestOutput) -> None:
        for ready_index, ready in self._waiting.push(index, output):
            for completion in ready.outputs:
                record = describe(ready_index, ready, completion)
                if self._has_sample_index:
                    record["sample_index"] = completion.index
                write(self._stream, json.dumps(record, ensure_ascii=not _is_utf8(self._stream), allow_nan=False) + "\n")

    def close(self, outputs: Sequence[RequestOutput], seconds: RunSeconds) -> None:
        for index, output in enumerate(outputs):
            self.update(index, output)


class StreamPrinter:
    """A single answer: its text as it is committed, then the figures."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._num_written = 0

    def update(self, index: int, output: RequestOutput) -> None:
        text = output.outputs[0].text
        if len(text) > self._num_written:
            write(self._stream, text[self._num_written :])
            self._num_written = len(text)

    def close(self, outputs: Sequence[RequestOutput], seconds: RunSeconds) -> None:
        self.update(0, outputs[0])
        line_break = "" if outputs[0].outputs[0].text.endswith("\n") else "\n"
        write(self._stream, f"{line_break}{figures(outputs, seconds)}\n")


class AnswerPrinter:
    """Several answers, each complete under a header that quotes its prompt, in prompt order; then the figures."""

    def __init__(self, stream: TextIO, prompts: Sequence[str]) -> None:
        self._stream = stream
        self._prompts = prompts
        self._waiting = InOrder()

    def update(self, index: int, output: RequestOutput) -> None:
        for ready_index, ready in self._waiting.push(index, output):
            for completion in ready.outputs:
                header = self._header(ready_index, completion.index, len(ready.outputs))
                text = completion.text.rstrip("\n")
                write(self._stream, f"{header}\n{text}\n\n")

    def close(self, outputs: Sequence[RequestOutput], seconds: RunSeconds) -> None:
        for index, output in enumerate(outputs):
            self.update(index, output)
        write(self._stream, f"{figures(outputs, seconds)}\n")

    def _header(self, index: int, sample_index: int, num_samples: int) -> str:
        sample = f", answer {sample_index + 1} of {num_samples}" if num_samples > 1 else ""
        quoted = " ".join(self._prompts[index].split())
        if len(quoted) > HEADER_WIDTH:
            quoted = quoted[: HEADER_WIDTH - 1] + "…"
        return f"== {index + 1} of {len(self._prompts)}{sample}: {quoted}"


class InOrder:
    """Holds finished outputs back until all earlier ones have been handed out; each is handed out once."""

    def __init__(self) -> None:
        self._finished: dict[int, RequestOutput] = {}
        self._next_index = 0

    def push(self, index: int, output: RequestOutput) -> list[tuple[int, RequestOutput]]:
        """Take the newest state of prompt `index`; return the finished outputs whose turn has come."""
        if output.finished and index >= self._next_index:
            self._finished[index] = output
        ready = []
        while self._next_index in self._finished:
            ready.append((self._next_index, self._finished.pop(self._next_index)))
            self._next_index += 1
        return ready


def describe(index: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
    """One answer as the object that `--json` prints."""
    speculation = completion.speculation
    record: dict[str, Any] = {
        "index": index,
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "num_prompt_tokens": len(output.prompt_token_ids),
        "num_committed_tokens": speculation.num_committed_tokens,
        "num_verify_steps": speculation.num_verify_steps,
        "num_draft_tokens": speculation.num_draft_tokens,
        "num_accepted_draft_tokens": speculation.num_accepted_draft_tokens,
        "num_lookup_tokens": speculation.num_lookup_tokens,
        "num_accepted_lookup_tokens": speculation.num_accepted_lookup_tokens,
        "acceptance_length": speculation.acceptance_length,
        "time_per_committed_token_ms": speculation.time_per_committed_token_ms,
        "seed": output.seed,
    }
    if completion.logprobs is not None:
        record["logprobs"] = [_describe_logprob(entry) for entry in completion.logprobs]
    if output.prompt_logprobs is not None:
        record["prompt_logprobs"] = [entry and _describe_logprob(entry) for entry in output.prompt_logprobs]
    return record


def _describe_logprob(entry: TokenLogprob) -> dict[str, Any]:
    return {
        "token_id": entry.token_id,
        "logprob": _finite(entry.logprob),
        "rank": entry.rank,
        "top": [{"token_id": token_id, "logprob": _finite(logprob)} for token_id, logprob in entry.top],
    }


def _finite(value: float) -> float | None:
    """JSON knows no infinities; an impossible token's log-probability becomes null."""
    return value if math.isfinite(value) else None


def figures(outputs: Sequence[RequestOutput], seconds: RunSeconds) -> str:
    """One line about the whole run.

    Acceptance length and time per committed token are pooled over all answers (sums divided by sums); tokens/s is what
    the machine delivered while it answered, so with a batch it exceeds what one reader sees.
    """
    parts = [completion.speculation for output in outputs for completion in output.outputs]
    num_committed_tokens = sum(part.num_committed_tokens for part in parts)
    num_verify_steps = sum(part.num_verify_steps for part in parts)
    step_seconds = sum(part.step_seconds for part in parts)
    acceptance_length = num_committed_tokens / max(1, num_verify_steps)
    time_per_committed_token_ms = 1000.0 * step_seconds / max(1, num_committed_tokens)
    tokens_per_second = num_committed_tokens / seconds.answering if seconds.answering > 0 else 0.0
    compiled = "" if seconds.compiling is None else f"; compiling the guide took {seconds.compiling:.2f} s"
    return (
        f"[{num_committed_tokens} committed tokens, acceptance length {acceptance_length:.2f}, "
        f"{time_per_committed_token_ms:.2f} ms per committed token, {tokens_per_second:.1f} tokens/s{compiled}]"
    )


@contextmanager
def written() -> Iterator[None]:
    """Turn failures to write the output into one line.

    Raises:
        UserError: the stream cannot take it, for example because the disk is full.
        BrokenPipeError: nobody reads the stream any more.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"the output cannot be written: {error.strerror}; free some space or write elsewhere") from None


def write(stream: IO[str], text: str) -> None:
    """Write `text` at once; characters that the stream's encoding lacks become question marks.

    Raises:
        UserError, BrokenPipeError: as `written` does.
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    with written():
        stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()


def draw(console: Console, drawing: RenderableType, is_wrapped: bool = True) -> None:
    """Write a drawing of rich's as `write` writes text; rich itself would leave the program when a pipe is closed.

    Raises:
        UserError, BrokenPipeError: as `written` does.
    """
    with written(), console.capture() as captured:
        console.print(drawing, soft_wrap=not is_wrapped)
    write(console.file, captured.get())


def _is_utf8(stream: TextIO) -> bool:
    return (stream.encoding or "utf-8").lower().replace("-", "") == "utf8"
