"""From a checked body to an answer: what is asked of the engine, and who writes what it answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from aquiline.config import EngineConfig
from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams
from aquiline.request import SamplingParams
from aquiline.server.answer_events import AnswerEvents
from aquiline.server.answers import Answer, AnswerHead, AnswerOptions, new_id, whole_answer
from aquiline.server.chat_answer import ChatAnswer, ChatPlan
from aquiline.server.completion_answer import CompletionAnswer, CompletionPlan
from aquiline.server.engine_client import EngineClient
from aquiline.server.engine_thread import EngineRequest
from aquiline.server.errors import ModelNotServedError, RequestTimeoutError
from aquiline.server.figures import logged_figures
from aquiline.server.guided import forces_call
from aquiline.server.middleware import RequestRecord
from aquiline.server.prompts import PromptLimits, encode_prompts
from aquiline.server.protocol.chat import ChatBody
from aquiline.server.protocol.common import GenerationBody
from aquiline.server.protocol.completions import CompletionBody
from aquiline.server.protocol.messages import template_messages, template_tools
from aquiline.server.sampling import chat_params, completion_params
from aquiline.server.settings import ServerSettings
from aquiline.server.sse import EventStream, unless_gone
from aquiline.server.tools.events import ToolParser
from aquiline.server.tools.llama3 import Llama3Parser
from aquiline.server.tools.prompt import ToolPrompts
from aquiline.tokenizer import Tokenizer
from aquiline.withdrawal import Withdrawal

# They wait more than they work: what is large is compiled elsewhere, and small forms must not wait for it.
NUM_COMPILERS = 256


class ServedLLM(Protocol):
    """What a server needs of a model beside its engine."""

    @property
    def config(self) -> EngineConfig: ...

    @property
    def tokenizer(self) -> Tokenizer: ...


@dataclass(frozen=True)
class Served:
    """The model behind a server.

    Attributes:
        name: what clients call it.
        fingerprint: of this version.
        compile_guided: prepares the engine for a constraint, which knows it as long as the caller holds what this
            returns; raises InvalidParameterError for one it cannot take, and ends when it is withdrawn.
    """

    llm: ServedLLM
    name: str
    limits: PromptLimits
    fingerprint: str
    tool_prompts: ToolPrompts
    compile_guided: Callable[[GuidedParams, Withdrawal], object]


@dataclass(frozen=True)
class Ask:
    """What the engine is asked for one body, and who writes the answer."""

    requests: Sequence[EngineRequest]
    answer: Answer
    is_streamed: bool


class Service:
    """Answers bodies."""

    def __init__(self, served: Served, client: EngineClient, settings: ServerSettings) -> None:
        self.served = served
        self.client = client
        self._settings = settings
        self._compilers = ThreadPoolExecutor(NUM_COMPILERS, "compile")

    async def chat(self, body: ChatBody, request: Request) -> Response:
        """Answer a conversation.

        Raises:
            AquilineError: the body cannot be answered, or the server cannot answer now.
        """
        return await self._answer(await asyncio.to_thread(self._ask_chat, body), request)

    async def complete(self, body: CompletionBody, request: Request) -> Response:
        """Continue texts; raises as `chat`."""
        return await self._answer(await asyncio.to_thread(self._ask_completion, body), request)

    def check_model(self, name: str | None) -> None:
        """Raise ModelNotServedError when `name` is not the served model."""
        if name is not None and name != self.served.name:
            raise ModelNotServedError(f"no model {name!r} is served here; the only one is {self.served.name!r}")

    def _ask_chat(self, body: ChatBody) -> Ask:
        self.check_model(body.model)
        params = chat_params(body)
        self._check_number(params.n)
        tokenizer = self.served.llm.tokenizer
        messages = template_messages(body.messages)
        is_call = forces_call(body)
        tools = template_tools(body.tools or (), is_call) if body.tool_choice != "none" else []
        token_ids = self.served.tool_prompts.encode(messages, tools, body.add_generation_prompt is not False)
        self.served.limits.check(token_ids, "the conversation")
        plan = ChatPlan(
            head=self._head("chatcmpl", "chat.completion", "chat.completion.chunk"),
            options=_options(body),
            tokenizer=tokenizer,
            prompt_token_ids=tuple(token_ids),
            num_answers=params.n,
            skips_special_tokens=params.skip_special_tokens,
            new_parser=self._parser_factory(tools, is_call),
            has_one_call=body.parallel_tool_calls is False,
        )
        return Ask([self._engine_request(body, token_ids, params)], ChatAnswer(plan), body.is_streamed)

    def _parser_factory(self, tools: Sequence[Mapping[str, Any]], is_call: bool) -> Callable[[], ToolParser] | None:
        names = frozenset(tool["function"]["name"] for tool in tools)
        if is_call:
            return lambda: Llama3Parser(names)
        return (lambda: self.served.tool_prompts.new_parser(names)) if names else None

    def _ask_completion(self, body: CompletionBody) -> Ask:
        self.check_model(body.model)
        params = completion_params(body)
        prompts = encode_prompts(body, self.served.llm.tokenizer, self.served.limits)
        self._check_number(params.n * len(prompts))
        plan = CompletionPlan(
            head=self._head("cmpl", "text_completion", "text_completion"),
            options=_options(body, drops_output=body.max_tokens == 0),
            tokenizer=self.served.llm.tokenizer,
            prompts=prompts,
            num_answers=params.n,
            skips_special_tokens=params.skip_special_tokens,
            wants_logprobs=body.logprobs is not None,
            is_echoed=bool(body.echo),
        )
        requests = [self._engine_request(body, prompt.token_ids, params) for prompt in prompts]
        return Ask(requests, CompletionAnswer(plan), body.is_streamed)

    def _check_number(self, num_answers: int) -> None:
        if num_answers > self._settings.max_answers:
            raise InvalidParameterError(
                f"n is too large: {num_answers} answers, n times the prompts, are asked for and one body may ask for"
                f" {self._settings.max_answers}"
            )

    def _engine_request(self, body: GenerationBody, token_ids: Sequence[int], params: SamplingParams) -> EngineRequest:
        return EngineRequest(token_ids, params, body.priority or 0)

    def _head(self, prefix: str, kind: str, chunk_kind: str) -> AnswerHead:
        return AnswerHead(new_id(prefix), kind, chunk_kind, self.served.name, self.served.fingerprint)

    async def _compile(self, guided: GuidedParams) -> object:
        """Prepare the engine for a constraint; it knows it as long as the caller holds what this returns.

        Threads do nothing else, so that slow ones delay no other work.
        """
        withdrawal = Withdrawal()
        compiling = asyncio.get_running_loop().run_in_executor(
            self._compilers, self.served.compile_guided, guided, withdrawal
        )
        timeout = self._settings.request_timeout or None
        ended = self.client.ended
        try:
            await asyncio.wait((compiling, ended), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if compiling.done():
                return compiling.result()
            if ended.done():
                ended.result()
            raise RequestTimeoutError("the form of the answer takes too long to compile; simplify it")
        finally:
            withdrawal.withdraw()
            compiling.cancel()

    async def _answer(self, ask: Ask, request: Request) -> Response:
        guided = ask.requests[0].params.guided
        grammar = None if guided is None else await unless_gone(request.receive, self._compile(guided))
        # The engine takes it before its next step, so a client that leaves meanwhile is noticed soon enough afterwards.
        submission = await self.client.submit(
            ask.requests, self._settings.request_timeout, ask.answer.options.wants_aquiline
        )
        # From here on the engine holds it.
        del grammar
        record: RequestRecord = request.state.record

        def close() -> None:
            self.client.abort(submission)
            self.client.metrics.observe_end(submission, time.perf_counter() - submission.submitted_at)
            record.figures |= logged_figures(submission)

        if ask.is_streamed:
            return EventStream(AnswerEvents(ask.answer, submission), close)
        try:
            final = await unless_gone(request.receive, submission.finished())
        finally:
            close()
        return JSONResponse(whole_answer(ask.answer, final))


def _options(body: GenerationBody, drops_output: bool = False) -> AnswerOptions:
    return AnswerOptions(
        wants_stream_usage=body.wants_stream_usage,
        wants_aquiline=bool(body.aquiline),
        wants_token_ids=bool(body.return_token_ids),
        wants_prompt_logprobs=body.prompt_logprobs is not None,
        is_single=body.stream_tokens == "single",
        drops_output=drops_output,
    )
