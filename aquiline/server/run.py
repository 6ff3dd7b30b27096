"""A running server: uvicorn around the application, and a way to stop that loses no answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from aquiline.errors import InternalError, UserError
from aquiline.llm import LLM
from aquiline.server.app import create_app
from aquiline.server.connections import TimedProtocol, protocol_factory
from aquiline.server.engine_client import EngineClient
from aquiline.server.errors import ServerStoppingError
from aquiline.server.logs import logged_to_standard_error
from aquiline.server.metrics import Metrics
from aquiline.server.prompts import PromptLimits
from aquiline.server.service import Served
from aquiline.server.settings import ServerSettings
from aquiline.server.step_report import engine_reporter
from aquiline.server.tools.prompt import ToolPrompts

SECONDS_AFTER_DRAIN = 5


def serve(
    llm: LLM, model: str, settings: ServerSettings, version: str, on_ready: Callable[[str], None] | None = None
) -> None:
    """Serve until the process is told to stop; running requests may then finish within `drain_timeout`.

    Args:
        model: the name it was loaded by.
        on_ready: called with the server's address when it takes requests.

    Raises:
        UserError: the address cannot be used.
        InternalError: the engine has failed and was given up.
    """
    metrics = Metrics(settings.served_model_name or model)
    max_unfinished = llm.config.scheduler.max_num_seqs + settings.max_queue
    client = EngineClient(llm.engine, max_unfinished, metrics, engine_reporter(llm))
    app = create_app(served_by(llm, model, settings, version), client, settings, version)
    server = DrainingServer(uvicorn_config(app, settings), client, settings.drain_timeout)
    server.on_ready = on_ready
    client.after_give_up = server.give_up
    try:
        with logged_to_standard_error(settings.log_format):
            server.run()
    except SystemExit:
        raise UserError(
            f"{settings.host}:{settings.port} cannot be listened on; is another server there? choose another --port"
        ) from None
    if client.has_failed:
        raise InternalError("the engine failed in several steps on end, so the server has stopped")


def served_by(llm: LLM, model: str, settings: ServerSettings, version: str) -> Served:
    """What a server of `llm` tells and checks."""
    limits = PromptLimits(llm.engine.scheduler.max_request_tokens, llm.models.target.config.vocab_size)
    tool_prompts = ToolPrompts(llm.tokenizer, settings.tool_format)
    assert llm.engine.grammars is not None, "an LLM has a tokenizer, and so a vocabulary"
    # Otherwise the first guided request would hold up all others: what it loads needs the interpreter for a while.
    llm.engine.grammars.prepare()
    name = settings.served_model_name or model
    return Served(llm, name, limits, f"aquiline-{version}", tool_prompts, llm.engine.grammars.compile)


def uvicorn_config(app: FastAPI, settings: ServerSettings) -> uvicorn.Config:
    """Uvicorn's settings."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=protocol_factory(settings),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.drain_timeout) + SECONDS_AFTER_DRAIN,
    )


class DrainingServer(uvicorn.Server):
    """Stops taking requests when it is told to stop, and gives those that run their time."""

    def __init__(self, config: uvicorn.Config, client: EngineClient, drain_timeout: float) -> None:
        super().__init__(config)
        self._client = client
        self._drain_timeout = drain_timeout
        self.on_ready: Callable[[str], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn; then tell that the server listens."""
        await super().startup(sockets)
        if self.started and self.on_ready is not None:
            self.on_ready(self.address)

    @property
    def address(self) -> str:
        """Where the server listens, as a URL."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain on the first signal, and stop at once on a second one; neither is an error of the process."""
        if self.should_exit:
            self.force_exit = True
            self._client.post(self._cut_off)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn, but requests that are not finished in time get an error instead of a broken connection."""
        self._client.refuse_new()
        timer = asyncio.get_running_loop().call_later(self._drain_timeout, self._end_all)
        await super().shutdown(sockets)
        timer.cancel()
        if self.force_exit:
            # The engine has to be out of its step before the interpreter ends.
            await self.lifespan.shutdown()

    def _end_all(self) -> None:
        """The time to drain is over; who does not read gets no error either."""
        self._client.abort_all(
            ServerStoppingError("the server has stopped before this request was finished; ask again")
        )
        for connection in self._connections:
            connection.cut_off_unread()

    def _cut_off(self) -> None:
        """Wait for nobody."""
        self._client.abort_all(ServerStoppingError("the server has stopped"))
        for connection in self._connections:
            connection.transport.abort()

    @property
    def _connections(self) -> list[TimedProtocol]:
        return [connection for connection in self.server_state.connections if isinstance(connection, TimedProtocol)]

    def give_up(self) -> None:
        """Stop because the engine has failed."""
        self.should_exit = True
