"""The endpoints."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from aquiline.errors import PromptError
from aquiline.server.errors import EngineGivenUpError, Failure, ServerStoppingError
from aquiline.server.protocol.answers import ChatCompletion, Completion
from aquiline.server.protocol.chat import ChatBody
from aquiline.server.protocol.common import ErrorBody, ModelCard, ModelList
from aquiline.server.protocol.completions import (
    CompletionBody,
    DetokenizeAnswer,
    DetokenizeBody,
    Health,
    TokenizeAnswer,
    TokenizeBody,
    Version,
)
from aquiline.server.protocol.messages import template_messages, template_tools
from aquiline.server.service import Service

STARTED = int(time.time())
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": description}
    for status, description in {
        400: "The body cannot be answered; the message says why.",
        401: "The API key is missing or wrong.",
        404: "No such model.",
        408: "The request took too long to arrive.",
        413: "The body is too long.",
        429: "The queue is full; ask again after Retry-After seconds.",
        500: "The engine failed.",
        503: "The server is stopping, or too many connections are open.",
        504: "The request took too long.",
    }.items()
}
STREAM: dict[str, Any] = {"text/event-stream": {"schema": {"type": "string"}}}
router = APIRouter()


async def service_of(request: Request) -> Service:
    """The service behind the application; a plain function would take a turn in a thread for every request."""
    service: Service = request.app.state.service
    return service


Serving = Annotated[Service, Depends(service_of)]


@router.post("/v1/chat/completions", responses=REFUSALS | {200: {"model": ChatCompletion, "content": STREAM}})
async def chat_completions(body: ChatBody, request: Request, service: Serving) -> Response:
    """Answer a conversation, whole or as a stream of events."""
    return await service.chat(body, request)


@router.post("/v1/completions", responses=REFUSALS | {200: {"model": Completion, "content": STREAM}})
async def completions(body: CompletionBody, request: Request, service: Serving) -> Response:
    """Continue texts, whole or as a stream of events."""
    return await service.complete(body, request)


@router.get("/v1/models", responses=REFUSALS)
async def models(service: Serving) -> ModelList:
    """The served model, as a list."""
    return ModelList(object="list", data=[_card(service)])


@router.get("/v1/models/{name:path}", responses=REFUSALS)
async def model(name: str, service: Serving) -> ModelCard:
    """The served model."""
    service.check_model(name)
    return _card(service)


def _card(service: Service) -> ModelCard:
    return ModelCard(
        id=service.served.name,
        object="model",
        created=STARTED,
        owned_by="aquiline",
        max_model_len=service.served.limits.max_request_tokens,
    )


@router.post("/tokenize", responses=REFUSALS)
def tokenize(body: TokenizeBody, service: Serving) -> TokenizeAnswer:
    """The tokens of a text or a conversation."""
    service.check_model(body.model)
    tokenizer = service.served.llm.tokenizer
    if (body.prompt is None) == (body.messages is None):
        raise PromptError("give either prompt or messages")
    if body.prompt is not None:
        tokens = tokenizer.encode(body.prompt, body.add_special_tokens)
    else:
        assert body.messages is not None
        messages, tools = template_messages(body.messages), template_tools(body.tools or ())
        tokens = service.served.tool_prompts.encode(messages, tools, body.add_generation_prompt)
    texts = [tokenizer.token_text(token_id) for token_id in tokens] if body.return_token_strs else None
    limit = service.served.limits.max_request_tokens
    return TokenizeAnswer(count=len(tokens), max_model_len=limit, tokens=tokens, token_strs=texts)


@router.post("/detokenize", responses=REFUSALS)
def detokenize(body: DetokenizeBody, service: Serving) -> DetokenizeAnswer:
    """The text of tokens, special ones included."""
    service.check_model(body.model)
    vocab_size = service.served.limits.vocab_size
    for token_id in body.tokens:
        if not 0 <= token_id < vocab_size:
            raise PromptError(f"tokens holds {token_id}; token ids are the integers 0 to {vocab_size - 1}")
    return DetokenizeAnswer(prompt=service.served.llm.tokenizer.decode(body.tokens, skip_special_tokens=False))


@router.get("/health", responses=REFUSALS)
async def health(service: Serving) -> Health:
    """Whether the engine works."""
    if service.client.has_failed:
        raise EngineGivenUpError("the engine has failed; start the server again")
    return Health(status="ok")


@router.get("/ready", responses=REFUSALS)
async def ready(service: Serving) -> Health:
    """Whether requests are taken."""
    if not service.client.is_ready:
        raise ServerStoppingError("the server takes no requests now; ask another one")
    return Health(status="ok")


@router.get("/metrics", responses=REFUSALS, response_class=PlainTextResponse)
async def metrics(service: Serving) -> Response:
    """Figures for Prometheus."""
    return Response(service.client.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


@router.get("/figures", responses=REFUSALS)
async def figures(service: Serving) -> dict[str, Any]:
    """What the page at / shows: figures of this moment, and of each load that there was."""
    speculate = service.served.llm.config.speculative.mode.text
    return {"model": service.served.name, "speculate": speculate} | service.client.live.figures()


@router.get("/version", responses=REFUSALS)
async def version(request: Request) -> Version:
    """The version of Aquiline."""
    return Version(version=request.app.version)


def failure_response(failure: Failure) -> JSONResponse:
    """A failure as an answer of HTTP."""
    return JSONResponse(failure.body, failure.status, dict(failure.headers))
