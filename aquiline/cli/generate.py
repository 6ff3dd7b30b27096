"""`aquiline generate`: answer prompts offline."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from aquiline.cli.explain import StepView
from aquiline.cli.model_choice import ModelChoice, add_model_options, check_threads, open_llm
from aquiline.cli.options import (
    ENGINE_OPTIONS,
    ENGINE_RECORDS,
    SAMPLING_OPTIONS,
    SAMPLING_RECORDS,
    engine_config,
    sampling_params,
)
from aquiline.cli.output import AnswerPrinter, JsonPrinter, Printer, RunSeconds, StreamPrinter
from aquiline.cli.parser import add_options
from aquiline.cli.prompts import Prompt, read_prompts
from aquiline.cli.step_trace_file import TRACE_HELP, check_trace_path, steps_traced
from aquiline.cli.waiting import AwaitedPrinter
from aquiline.errors import InvalidParameterError
from aquiline.request import RequestOutput, SamplingParams

if TYPE_CHECKING:
    from aquiline.llm import LLM

DESCRIPTION = """Answer prompts. Text appears as it is committed, and one line of figures follows; several answers
appear under headers, each when it is complete and its turn has come."""

SAME_ANSWERS = "--n is {} and --temperature 0, where all answers to a prompt are the same; give a --temperature above 0"


@dataclass(frozen=True, kw_only=True)
class GenerateSettings(ModelChoice):
    """A checked `aquiline generate` command line."""

    prompts: tuple[Prompt, ...]
    params: SamplingParams
    is_raw: bool
    is_json: bool
    is_explained: bool
    trace: str | None = None


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `generate` to the command line."""
    parser = commands.add_parser("generate", help="answer prompts", description=DESCRIPTION)
    source = parser.add_argument_group("model and prompts")
    add_model_options(source)
    source.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="ask this (may be repeated)")
    source.add_argument(
        "--prompts", metavar="FILE", help="JSONL file, one object with prompt, messages or turns per line; - is stdin"
    )
    source.add_argument("--raw", action="store_true", help="do not apply the chat template")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print one JSON object per answer, in prompt order")
    output.add_argument("--explain", action="store_true", help="draw the draft tree of every step")
    output.add_argument("--trace", metavar="FILE", help=TRACE_HELP)
    add_options(parser.add_argument_group("sampling"), SAMPLING_OPTIONS, SAMPLING_RECORDS)
    add_options(parser.add_argument_group("engine"), ENGINE_OPTIONS, ENGINE_RECORDS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Answer the prompts that `args` names; everything is checked before the model is loaded."""
    settings = check_arguments(args)
    if settings.params.n > 1 and settings.params.temperature == 0.0:
        warnings.warn(SAME_ANSWERS.format(settings.params.n), stacklevel=2)
    llm = open_llm(settings)
    with AwaitedPrinter(make_printer(settings), settings.is_json or settings.is_explained) as printer:
        started = time.perf_counter()
        # Who asks for a grammar that somebody holds gets it at once.
        grammar = None if settings.params.guided is None else llm.engine.guidance.grammar_of(settings.params)
        compiled = time.perf_counter()
        with steps_traced(llm, settings.trace):
            outputs = answer(llm, settings, printer)
        compiling = None if grammar is None else compiled - started
        printer.close(outputs, RunSeconds(time.perf_counter() - compiled, compiling))


def check_arguments(args: argparse.Namespace) -> GenerateSettings:
    """Turn parsed arguments into settings.

    Raises:
        InvalidParameterError: a value outside its range, or options that contradict each other.
        PromptError: no prompt, an empty one, or a prompt file that cannot be used.
    """
    if args.explain and args.json:
        raise InvalidParameterError("--explain draws and --json prints objects; give only one of them")
    params = sampling_params(args)
    if not args.json and (params.logprobs is not None or params.prompt_logprobs is not None):
        raise InvalidParameterError("log-probabilities are only printed as JSON; add --json")
    return GenerateSettings(
        model=args.model,
        draft=args.draft,
        prompts=read_prompts(args.prompt, args.prompts, args.raw),
        params=params,
        config=engine_config(args),
        num_threads=check_threads(args.threads),
        is_raw=args.raw,
        is_json=args.json,
        is_explained=args.explain,
        trace=check_trace_path(args.trace),
    )


def make_printer(settings: GenerateSettings) -> Printer:
    """The way answers are shown: as objects, as a stream, or one after the other."""
    if settings.is_json:
        return JsonPrinter(sys.stdout, settings.params.n)
    if len(settings.prompts) == 1 and settings.params.n == 1 and not settings.is_explained:
        return StreamPrinter(sys.stdout)
    return AnswerPrinter(sys.stdout, [prompt.text for prompt in settings.prompts])


def answer(llm: LLM, settings: GenerateSettings, printer: Printer) -> list[RequestOutput]:
    """Run all prompts together.

    `printer` sees every output as it grows, except with `--explain`: there the trees come as they grow and the answers
    when all are complete, because a text that grows would run into the trees.
    """
    on_output = None if settings.is_explained else printer.update
    on_trace = None
    if settings.is_explained:
        on_trace = StepView(Console(highlight=False), llm.tokenizer.token_text, llm.tokenizer.decode).show
    if settings.is_raw:
        texts = [prompt.text for prompt in settings.prompts]
        return llm.generate(texts, settings.params, on_output=on_output, on_trace=on_trace)
    conversations = [prompt.messages for prompt in settings.prompts]
    return llm.chat(conversations, settings.params, on_output=on_output, on_trace=on_trace)
