"""Servers for tests: a real one in a thread, on a free port, around a toy model."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import openai
from fastapi import FastAPI

from aquiline.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculativeConfig
from aquiline.llm import LLM
from aquiline.server.app import create_app
from aquiline.server.engine_client import EngineClient
from aquiline.server.engine_thread import ServedEngine
from aquiline.server.metrics import Metrics
from aquiline.server.prompts import PromptLimits
from aquiline.server.run import DrainingServer, uvicorn_config
from aquiline.server.service import Served, ServedLLM
from aquiline.server.settings import ServerSettings
from aquiline.server.step_report import engine_reporter
from aquiline.server.tools.prompt import ToolPrompts
from aquiline.speculation import parse_speculation
from tests.checkpoints import write_draft, write_target
from tests.tiny import tiny_eagle_config, tiny_llama_config
from tests.tiny_tokenizers import train_byte_level

NAME = "toy"
QUESTION: list[Any] = [{"role": "user", "content": "The eagle flies?"}]
SECONDS_TO_STOP = 30


def write_toy(folder: Path) -> Path:
    """A toy target and its draft in `folder`."""
    vocab_size = train_byte_level().get_vocab_size()
    config = replace(tiny_llama_config(), vocab_size=vocab_size, max_position=640)
    write_target(folder / "target", config)
    write_draft(folder / "draft", replace(tiny_eagle_config(config), draft_vocab_size=vocab_size))
    return folder


def toy_llm(folder: Path, speculate: str = "tree:2x2", num_blocks: int | None = None, max_num_seqs: int = 4) -> LLM:
    """The toy model of `write_toy`, loaded."""
    config = EngineConfig(
        dtype="float32",
        speculative=SpeculativeConfig(parse_speculation(speculate), draft_check="off"),
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=64),
        cache=CacheConfig(block_size=4, num_blocks=num_blocks or 256),
    )
    return LLM(str(folder / "target"), draft=str(folder / "draft"), config=config)


def keep_little_unread(server: DrainingServer) -> None:
    """Have the kernel keep little for clients that do not read: megabytes otherwise.

    Connections inherit that from the socket that listens.
    """
    with socket.socket(fileno=os.dup(server.servers[0].sockets[0].fileno())) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)


@dataclass(frozen=True)
class Running:
    """A server that runs.

    Attributes:
        url: without a slash at its end.
    """

    url: str
    client: EngineClient
    server: DrainingServer
    app: FastAPI

    def openai(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)

    def http(self, **settings: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, **settings)


@contextmanager
def running(
    llm: ServedLLM, engine: ServedEngine, settings: ServerSettings | None = None, limits: PromptLimits | None = None
) -> Iterator[Running]:
    """Serve until the `with` ends; then nothing may be left in the engine."""
    settings = replace(settings or ServerSettings(), port=0)
    reporter = engine_reporter(llm) if isinstance(llm, LLM) else None
    client = EngineClient(engine, 4 + settings.max_queue, Metrics(NAME), reporter)
    limits = limits or PromptLimits(640, llm.tokenizer.vocab_size)
    tool_prompts = ToolPrompts(llm.tokenizer, settings.tool_format)
    grammars = llm.engine.grammars if isinstance(llm, LLM) else None
    compile_guided = grammars.compile if grammars is not None else lambda guided, withdrawal: guided
    served = Served(llm, NAME, limits, "aquiline-test", tool_prompts, compile_guided)
    app = create_app(served, client, settings, "0")
    server = DrainingServer(uvicorn_config(app, settings), client, settings.drain_timeout)
    is_listening = threading.Event()
    server.on_ready = lambda _: is_listening.set()
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert is_listening.wait(SECONDS_TO_STOP), "the server does not start"
        yield Running(server.address, client, server, app)
    finally:
        server.should_exit = True
        thread.join(SECONDS_TO_STOP)
    assert not thread.is_alive(), "the server does not stop"
    assert not engine.has_unfinished and client.num_unfinished == 0


@contextmanager
def toy_server(llm: LLM, settings: ServerSettings | None = None) -> Iterator[Running]:
    """A server of a toy model; afterwards all its blocks are free."""
    with running(llm, llm.engine, settings) as server:
        yield server
    llm.engine.scheduler.check_integrity()
    assert llm.engine.cache.num_free_blocks == llm.engine.cache.num_blocks


def read_all(client: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    received = b""
    try:
        while part := client.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received
