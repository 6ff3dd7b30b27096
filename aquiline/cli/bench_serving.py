"""`aquiline bench serving`: a server of the OpenAI API under load, ours or any other."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aquiline.cli.measurement import print_result, shown_bar
from aquiline.cli.model_choice import check_draft
from aquiline.cli.parser import integer, number
from aquiline.cli.prompt_sets import add_prompt_set_options, prompt_sets
from aquiline.cli.pull import shown_progress
from aquiline.cli.serve import read_keys
from aquiline.cli.served_model import ServedModel, add_served_model_options, served_model
from aquiline.cli.serving_loads import add_load_options, load_choice
from aquiline.cli.serving_table import drawing
from aquiline.errors import InvalidParameterError
from aquiline.model_store import resolve_model
from aquiline.request import SamplingParams

if TYPE_CHECKING:
    from aquiline.benchmark.serving.measure import ServingPlan

DESCRIPTION = """Send requests to a server of the OpenAI API as they would come from many users, and time what each
sees. With --model a server of ours is started for it and stopped afterwards."""
ENDPOINTS = ("chat", "completions")


@dataclass(frozen=True, kw_only=True)
class ServingSettings:
    """A checked `aquiline bench serving` command line.

    Attributes:
        own: the server to start; None: there is one at the plan's URL.
        plan: but for where a server of ours is, and for how tokens are counted.
        tokenizer: the model whose tokenizer counts them.
    """

    own: ServedModel | None
    plan: ServingPlan
    tokenizer: str | None
    label: str | None
    is_json: bool


def add_command(kinds: argparse._SubParsersAction[Any]) -> None:
    """Add `serving` to the measurements."""
    parser = kinds.add_parser("serving", help="a server under load", description=DESCRIPTION)
    server = parser.add_argument_group("server")
    server.add_argument("--url", help="an API that is there, for example http://localhost:8000/v1")
    server.add_argument("--served-model", metavar="NAME", help="what requests call the model (default: the only one)")
    server.add_argument("--api-key-file", metavar="FILE", help="a file with the key to send, on its first line")
    server.add_argument("--endpoint", choices=ENDPOINTS, default="chat", help="which API is asked (default chat)")
    server.add_argument("--timeout", type=number, metavar="S", default=600.0, help="most seconds of a request")
    server.add_argument("--server-pid", type=integer, metavar="PID", help="a process whose memory is told")
    add_load_options(parser.add_argument_group("load"))
    prompts = parser.add_argument_group("prompts")
    add_prompt_set_options(prompts)
    prompts.add_argument("--repeat-prompts", action="store_true", help="leave prompts as they are, for the cache")
    requests = parser.add_argument_group("requests")
    requests.add_argument("--max-tokens", type=integer, metavar="N", default=128, help="of an answer (default 128)")
    requests.add_argument("--temperature", type=number, metavar="T", default=0.0, help="0 is greedy (default 0)")
    requests.add_argument("--top-p", type=number, metavar="P", default=1.0, help="in (0, 1] (default 1)")
    requests.add_argument("--seed", type=integer, metavar="S", default=0, help="of arrivals, order and sampling")
    requests.add_argument("--ignore-eos", action="store_true", help="ask for answers of full length")
    requests.add_argument("--extra-body", metavar="JSON", help="an object with more fields of each request")
    output = parser.add_argument_group("output")
    output.add_argument("--slo", metavar="LIMITS", help="limits in ms that goodput keeps, such as ttft:500,tpot:50")
    output.add_argument("--tokenizer", metavar="MODEL", help="counts tokens where the server tells no usage")
    output.add_argument("--label", metavar="TEXT", help="what reports call this server")
    output.add_argument("--json", action="store_true", help="print one JSON object with all rows and provenance")
    add_served_model_options(parser)
    parser.set_defaults(run=run)


def check_arguments(args: argparse.Namespace) -> ServingSettings:
    """Turn parsed arguments into settings.

    Raises:
        UserError: a value outside its range, options that contradict each other, or a file that cannot be read.
    """
    own = served_model(args)
    if (own is None) == (args.url is None):
        raise InvalidParameterError("give either --url, a server that is there, or --model, which one is started for")
    if own is not None and args.server_pid is not None:
        raise InvalidParameterError("--server-pid belongs to --url; the memory of a server of --model is known")
    if args.url is not None and not args.url.startswith(("http://", "https://")):
        raise InvalidParameterError(f"--url is {args.url!r}; give a whole address such as http://localhost:8000/v1")
    if not 0.0 < args.timeout < 1e7:
        raise InvalidParameterError(f"--timeout is {args.timeout}; it must be a positive number of seconds below 10^7")
    return ServingSettings(own=own, plan=_plan(args), tokenizer=args.tokenizer, label=args.label, is_json=args.json)


def _plan(args: argparse.Namespace) -> ServingPlan:
    """What is measured, of a server whose address is known or will be."""
    from aquiline.benchmark.serving.bodies import RequestSettings
    from aquiline.benchmark.serving.endpoint import EndpointSettings
    from aquiline.benchmark.serving.measure import ServingPlan
    from aquiline.benchmark.serving.service_levels import parse_service_levels

    sampled = {"max_tokens": args.max_tokens, "temperature": args.temperature, "top_p": args.top_p, "seed": args.seed}
    SamplingParams(**sampled)  # refuses what is out of range
    api_key = None if args.api_key_file is None else read_keys(args.api_key_file)[0]
    return ServingPlan(
        endpoint=EndpointSettings(args.url or "", api_key, args.endpoint, args.timeout),
        conversations=tuple(tuple(messages) for own_set in prompt_sets(args).values() for messages in own_set),
        requests=RequestSettings(
            model="",
            kind=args.endpoint,
            ignores_eos=args.ignore_eos,
            repeats_prompts=args.repeat_prompts,
            extra=_extra_fields(args.extra_body),
            **sampled,
        ),
        loads=load_choice(args).loads(args.seed),
        model=args.served_model,
        levels=None if args.slo is None else parse_service_levels(args.slo),
        server_pid=args.server_pid,
    )


def run(args: argparse.Namespace) -> None:
    """Measure the server that `args` names, or one that is started for it."""
    settings = check_arguments(args)
    if settings.own is not None:
        check_draft(settings.own.draft)
    with shown_progress() as show:
        for model in (settings.tokenizer, settings.own.model if settings.own else None):
            if model is not None:
                resolve_model(model, show)
    from aquiline.benchmark.serving.figures import Counting
    from aquiline.benchmark.serving.measure import measure_serving

    beginning = "starting the server" if settings.own else "connecting"
    with shown_bar(beginning) as bar, _server(settings) as plan:
        plan = dataclasses.replace(plan, counting=Counting(_token_counter(settings.tokenizer)))
        bar.rename("asking", sum(load.num_requests for load in plan.loads))
        serving = asyncio.run(measure_serving(plan, lambda _: bar.advance()))
    result = {
        "kind": "serving",
        "label": settings.label or (settings.own.text if settings.own else serving.model),
        "model": serving.model,
        "url": settings.plan.endpoint.url or None,
        "speculate": settings.own.speculative.mode.text if settings.own else None,
        "objective": settings.own.speculative.objective.text if settings.own else None,
        "slo": settings.plan.levels.text if settings.plan.levels else None,
        "rows": serving.rows,
    }
    print_result(result, settings.is_json, lambda: drawing(result))


@contextmanager
def _server(settings: ServingSettings) -> Iterator[ServingPlan]:
    """The plan with a server that answers, and with its process where that is known."""
    from aquiline.benchmark.serving.own_server import own_server

    plan = settings.plan
    if settings.own is None:
        yield plan
        return
    with own_server(settings.own.arguments) as server:
        endpoint = dataclasses.replace(plan.endpoint, url=server.url, api_key=None)
        yield dataclasses.replace(plan, endpoint=endpoint, server_pid=server.pid)


def _token_counter(model: str | None) -> Callable[[str], int] | None:
    if model is None:
        return None
    from aquiline.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_path(resolve_model(model))
    return lambda text: len(tokenizer.encode(text))


def _extra_fields(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise InvalidParameterError(f"--extra-body is {text!r}, which is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InvalidParameterError(f'--extra-body is {text!r}; it must be an object such as {{"top_k": 20}}')
    settled = {"stream", "stream_options", "messages", "prompt", "model", "n"} & set(fields)
    if settled:
        raise InvalidParameterError(f"--extra-body has {', '.join(sorted(settled))}, which are set here")
    return fields
