"""Mixed requests, some of them given up at random moments, on a cache that is too small for all of them.

    python -m tests.server.soak 2000

Every answer has to be the one that the model gives alone and without speculation; afterwards every block is free. The
long run also tells by how much the process has grown in its second half.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from aquiline.guided import GuidedParams
from aquiline.llm import LLM
from aquiline.request import RequestOutput, SamplingParams
from aquiline.server.guided import call_schema
from aquiline.server.protocol.chat import ChatBody
from aquiline.server.protocol.messages import template_tools
from aquiline.server.tools.events import CallEvent
from aquiline.server.tools.llama3 import Llama3Parser
from aquiline.server.tools.prompt import ToolPrompts
from tests.server.serving import Running, toy_llm, toy_server, write_toy

NUM_CONCURRENT = 12
ABORTED_SHARE = 0.1
BLOCK_SIZE = 4
# Beside those that the longest request needs.
SPARE_BLOCKS = 6
TEXTS = (
    "The eagle flies over the sea",
    "over the sea",
    "def step(self):",
    "12,5 km",
    "The eagle flies over land. " * 2,
)


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"enum": ["ab", "c"]}}, "required": ["s"]}
FORMS: list[tuple[dict[str, Any], GuidedParams]] = [
    ({"guided_choice": ["over land", "over the sea"]}, GuidedParams(choice=["over land", "over the sea"])),
    ({"guided_regex": "[a-e ]{4,30}"}, GuidedParams(regex="[a-e ]{4,30}")),
    ({"guided_json": SCHEMA}, GuidedParams(json_schema=SCHEMA)),
    ({"response_format": {"type": "json_object"}}, GuidedParams(json_object=True)),
]
TOOLS = [{"type": "function", "function": {"name": "fly", "parameters": SCHEMA}}]
# All fit beside the server's own tree:2x2.
MODES = ("auto", "off", "chain:1", "chain:6", "tree:2x2", "paths:0,1,00", "dynamic:steps=3,topk=2,nodes=5")


@dataclass(frozen=True)
class Job:
    """A request and what has to come back.

    Attributes:
        expected: text and finish reason of every choice.
        num_tokens: most tokens of the prompt and an answer.
    """

    path: str
    body: dict[str, Any]
    expected: list[tuple[str, str]]
    num_tokens: int


@dataclass
class Tally:
    """What has happened so far."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def make_jobs(llm: LLM, num_jobs: int, rng: random.Random) -> list[Job]:
    """Different requests with the answers of a model alone."""
    jobs = []
    for index in range(num_jobs):
        if index % 6 == 5:
            jobs.append(calling_job(llm, index, rng))
            continue
        settings: dict[str, Any] = {"max_tokens": rng.randint(1, 60), "n": rng.choice([1, 1, 2]), "seed": index}
        settings["temperature"] = rng.choice([0.0, 0.0, 1.0])
        if rng.random() < 0.3:
            settings["stop"] = [rng.choice("aeio")]
        text = rng.choice(TEXTS)
        form, guided = rng.choice(FORMS) if rng.random() < 0.3 else ({}, None)
        params = SamplingParams(**settings, guided=guided)
        extras: dict[str, Any] = {"logprobs": 1} if rng.random() < 0.2 else {}
        if rng.random() < 0.5:
            output = llm.generate(text, params)[0]
            jobs.append(job_of("/v1/completions", {"prompt": text} | settings | form | extras, output))
        else:
            messages = [{"role": "user", "content": text}]
            output = llm.chat(messages, params)[0]
            extras = {"logprobs": True} if extras else {}
            body = {"messages": messages, "aquiline": True} | settings | form | extras
            jobs.append(job_of("/v1/chat/completions", body, output))
    return jobs


def job_of(path: str, body: dict[str, Any], output: RequestOutput) -> Job:
    """The job whose answer is that of the model alone."""
    return Job(path, body, expected_of(output), len(output.prompt_token_ids) + body["max_tokens"])


def expected_of(output: RequestOutput) -> list[tuple[str, str]]:
    return [(completion.text, str(completion.finish_reason)) for completion in output.outputs]


def calling_job(llm: LLM, seed: int, rng: random.Random) -> Job:
    """A request whose answer is a call, with what a parser that sees it as a whole makes of it."""
    settings: dict[str, Any] = {"max_tokens": rng.randint(1, 60), "n": 1, "seed": seed, "temperature": 1.0}
    messages = [{"role": "user", "content": rng.choice(TEXTS)}]
    body = {"messages": messages, "tools": TOOLS, "tool_choice": "required"} | settings
    checked = ChatBody.model_validate(body)
    shown = template_tools(checked.tools or (), True)
    prompt = ToolPrompts(llm.tokenizer, "auto").encode(messages, shown, True)
    params = SamplingParams(**settings, guided=GuidedParams(json_schema=call_schema(checked)))
    output = llm.generate([prompt], params)[0]
    [(text, reason)] = expected_of(output)
    parser = Llama3Parser({"fly"})
    events = [*parser.push(text), *parser.finish()]
    told = "".join(event.name if isinstance(event, CallEvent) else event.text for event in events)
    is_call = any(isinstance(event, CallEvent) for event in events)
    expected = [(told, "tool_calls" if is_call and reason == "stop" else reason)]
    return replace(job_of("/v1/chat/completions", body, output), expected=expected)


async def run(server: Running, jobs: list[Job], num_requests: int, rng: random.Random) -> Tally:
    """Ask `num_requests` of the jobs, many at a time."""
    tally = Tally()
    tickets = iter(range(num_requests))
    limits = httpx.Limits(max_connections=NUM_CONCURRENT)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as http:

        async def work() -> None:
            for _ in tickets:
                await ask(http, rng.choice(jobs), rng, tally)

        await asyncio.gather(*(work() for _ in range(NUM_CONCURRENT)))
    return tally


async def ask(http: httpx.AsyncClient, job: Job, rng: random.Random, tally: Tally) -> None:
    """Ask one job, whole or streamed, and perhaps give it up."""
    body = job.body | {"stream": rng.random() < 0.6, "speculation": {"mode": rng.choice(MODES)}}
    patience = rng.randint(0, 8) if rng.random() < ABORTED_SHARE else None
    if body["stream"]:
        answer = await streamed(http, job.path, body, patience)
    else:
        seconds = None if patience is None else 0.002 * patience
        try:
            response = await asyncio.wait_for(http.post(job.path, json=body), seconds)
            assert response.status_code == 200, response.text
            answer = [(text_of(choice), choice["finish_reason"]) for choice in response.json()["choices"]]
        except TimeoutError:
            answer = None
    tally.counts["aborted" if answer is None else "answered"] += 1
    if answer is not None and answer != job.expected:
        tally.problems.append(f"{body}: {answer} instead of {job.expected}")


async def streamed(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], patience: int | None
) -> list[tuple[str, str]] | None:
    """The answer that a stream adds up to; None when it was given up after `patience` lines."""
    texts, reasons = [""] * body["n"], [""] * body["n"]
    num_lines = 0
    async with http.stream("POST", path, json=body) as response:
        assert response.status_code == 200, (await response.aread()).decode()
        async for line in response.aiter_lines():
            num_lines += 1
            if patience is not None and num_lines > patience:
                return None
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    texts[choice["index"]] += text_of(choice)
                    reasons[choice["index"]] += choice["finish_reason"] or ""
    return list(zip(texts, reasons, strict=True))


def text_of(choice: dict[str, Any]) -> str:
    """Text and calls of a choice, or of a piece of one."""
    if "text" in choice:
        return str(choice["text"])
    message = choice.get("message") or choice["delta"]
    functions = [call["function"] for call in message.get("tool_calls", ())]
    return (message.get("content") or "") + "".join(f.get("name", "") + f.get("arguments", "") for f in functions)


def soak(folder: Path, num_requests: int, seed: int = 0) -> Tally:
    """A whole run on the toy model in `folder`; what must hold at its end is checked by `toy_server`."""
    rng = random.Random(seed)
    jobs = make_jobs(toy_llm(folder, "off"), min(60, 8 + num_requests // 5), rng)
    most_blocks = -(-max(job.num_tokens for job in jobs) // BLOCK_SIZE)
    llm = toy_llm(folder, num_blocks=most_blocks + SPARE_BLOCKS)
    with toy_server(llm) as server:
        tally = asyncio.run(run(server, jobs, num_requests, rng))
    tally.counts["preempted"] = llm.engine.scheduler.num_preemptions
    return tally


def main() -> None:
    """Run as long as the command line asks."""
    num_requests = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        write_toy(Path(folder))
        for half in range(2):
            started = time.perf_counter()
            tally = soak(Path(folder), num_requests // 2, half)
            peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{dict(tally.counts)} in {time.perf_counter() - started:.0f} s, peak {peak_mb:.0f} MB")
            if tally.problems:
                sys.exit("\n".join(tally.problems[:5]))


if __name__ == "__main__":
    main()
