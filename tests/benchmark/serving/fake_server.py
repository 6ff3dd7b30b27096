"""A server of the OpenAI API whose every delay is known, in a thread on a free port.

What it does depends on the model that a request names, so that one server shows all cases.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

FIRST_SECONDS = 0.2
GAP_SECONDS = 0.05
NUM_EVENTS = 5
TOKENS_PER_EVENT = 2
NUM_TOKENS = NUM_EVENTS * TOKENS_PER_EVENT
NUM_PROMPT_TOKENS = 7
KEY = "right"
SECONDS_TO_START = 30


class FakeServer:
    """Attributes: `bodies` of all requests so far; `models`, the names it lists; `url` of its API."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.models = ["good"]
        self.num_committed = 0
        self.app = FastAPI()
        self.app.get("/v1/models")(self._list_models)
        self.app.get("/metrics")(self._metrics)
        self.app.post("/v1/chat/completions")(self._answer)
        self.app.post("/v1/completions")(self._answer)

    async def _list_models(self, request: Request) -> Response:
        if request.headers.get("Authorization") == "Bearer wrong":
            return JSONResponse({"error": {"message": "no such key"}}, 401)
        return JSONResponse({"data": [{"id": name} for name in self.models]})

    async def _metrics(self) -> Response:
        """As a server of ours: every token takes 4 ms, of which 3 verify."""
        committed = self.num_committed
        return PlainTextResponse(
            f'aquiline:generation_tokens_total{{model_name="m"}} {committed}\n'
            f"aquiline:step_seconds_sum {0.004 * committed}\naquiline:step_seconds_count {committed // 2}\n"
            f'aquiline:step_phase_seconds_total{{phase="verify"}} {0.003 * committed}\n'
            f"aquiline:spec_decode_num_drafts_total {committed // 2}\n"
            f"aquiline:spec_decode_num_draft_tokens_total {committed}\n"
            f"aquiline:spec_decode_num_accepted_draft_tokens_total {committed // 2}\n"
            f'aquiline:spec_decode_num_accepted_draft_tokens_per_pos_total{{position="0"}} {committed // 2}\n'
        )

    async def _answer(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        model = body["model"]
        if model == "full" and len(self.bodies) % 2 == 0:
            return JSONResponse({"error": {"message": "the queue is full"}}, 429)
        if model == "strict" and "stream_options" in body:
            return JSONResponse({"error": {"message": "unknown field stream_options"}}, 400)
        if model == "broken":
            return JSONResponse({"error": {"message": "out\nof order"}}, 500)
        return StreamingResponse(self._events(body), media_type="text/event-stream")

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        is_chat = "messages" in body
        if is_chat:
            yield _event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        await asyncio.sleep(FIRST_SECONDS)
        for number in range(NUM_EVENTS):
            if number:
                await asyncio.sleep(60.0 if body["model"] == "slow" else GAP_SECONDS)
            if body["model"] == "failing" and number == 2 and len(self.bodies) > 1:
                yield _event({"error": {"message": "the engine failed"}})
                return
            if body["model"] == "cutting" and number == 2 and len(self.bodies) > 1:
                return
            self.num_committed += TOKENS_PER_EVENT
            part = {"delta": {"content": "owl "}} if is_chat else {"text": "owl "}
            yield _event({"choices": [{"index": 0, "finish_reason": None, **part}]})
        yield _event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        if "stream_options" in body:
            usage = {"prompt_tokens": NUM_PROMPT_TOKENS, "completion_tokens": NUM_TOKENS}
            yield _event({"choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(content)}\n\n".encode()


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    """Serve until the `with` ends."""
    fake = FakeServer()
    server = uvicorn.Server(uvicorn.Config(fake.app, port=0, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        for _ in range(100 * SECONDS_TO_START):
            if server.started:
                break
            threading.Event().wait(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        fake.url = f"http://127.0.0.1:{port}/v1"
        yield fake
    finally:
        server.should_exit = True
        thread.join(SECONDS_TO_START)
    assert not thread.is_alive()
