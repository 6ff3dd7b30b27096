"""The application: routes, what surrounds them, and the engine's life."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response

from aquiline.errors import AquilineError, InternalError
from aquiline.server.engine_client import EngineClient
from aquiline.server.errors import Failure, describe_invalid, failure_of
from aquiline.server.middleware import BodyLimit, KeyCheck, RequestLog
from aquiline.server.page_routes import page_router
from aquiline.server.routes import failure_response, router
from aquiline.server.service import Served, Service
from aquiline.server.settings import ServerSettings
from aquiline.server.sse import CLIENT_CLOSED, ClientGoneError

LOGGER = logging.getLogger(__name__)
DESCRIPTION = "Llama models with EAGLE speculative decoding: the same tokens with and without, only sooner."


def create_app(served: Served, client: EngineClient, settings: ServerSettings, version: str) -> FastAPI:
    """An application that serves one model; its lifespan starts and stops the engine."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        client.start()
        try:
            yield
        finally:
            await client.stop()

    app = FastAPI(
        title="Aquiline",
        description=DESCRIPTION,
        version=version,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        # It would send clients to whatever their Host says, and those behind a proxy of HTTPS to HTTP.
        redirect_slashes=False,
    )
    app.state.service = Service(served, client, settings)
    app.include_router(router)
    app.include_router(page_router)
    app.add_exception_handler(AquilineError, _on_aquiline_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_fault)
    _describe_refusals(app)
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes, max_seconds=settings.request_body_timeout)
    app.add_middleware(KeyCheck, keys=settings.api_keys)
    app.add_middleware(RequestLog, metrics=client.metrics)
    return app


def _describe_refusals(app: FastAPI) -> None:
    """Take the answers out of the description that FastAPI gives to invalid bodies, and this application does not."""
    schema = app.openapi()
    for methods in schema["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)


async def _on_aquiline_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, AquilineError)
    if isinstance(error, ClientGoneError):
        return Response(status_code=CLIENT_CLOSED)
    if isinstance(error, InternalError):
        LOGGER.error("a request has failed", exc_info=error)
    return failure_response(failure_of(error))


async def _on_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems: list[Any] = list(error.errors())
    return failure_response(describe_invalid(problems))


async def _on_fault(_: Request, __: Exception) -> Response:
    """Whatever nobody has foreseen; the server logs it with its place."""
    return failure_response(failure_of(InternalError()))


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = str(error.detail).lower()
    if error.status_code == 404:
        message += "; the endpoints of OpenAI's API begin with /v1, and GET /docs names all there are"
    elif error.status_code == 400 and message == "there was an error parsing the body":
        message = "the body cannot be read as JSON; send it in UTF-8, and nested less deeply where it is"
    elif error.status_code == 405 and error.headers:
        message += f"; this endpoint takes {error.headers.get('Allow', 'others')}"
    failure = Failure(error.status_code, message, "invalid_request_error")
    return JSONResponse(failure.body, error.status_code, error.headers)
