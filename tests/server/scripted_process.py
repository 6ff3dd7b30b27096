"""A server in a process of its own whose steps and compilations take long: `python -m tests.server.scripted_process`.

    python -m tests.server.scripted_process FOLDER DRAIN_TIMEOUT MAX_RUN

It writes its address on a line, and `stopped` when it has stopped as it should.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from aquiline.guided import GuidedParams
from aquiline.server.app import create_app
from aquiline.server.engine_client import EngineClient
from aquiline.server.metrics import Metrics
from aquiline.server.prompts import PromptLimits
from aquiline.server.run import DrainingServer, uvicorn_config
from aquiline.server.service import Served
from aquiline.server.settings import ServerSettings
from aquiline.server.tools.prompt import ToolPrompts
from aquiline.tokenizer import Tokenizer
from aquiline.withdrawal import Withdrawal
from tests.server.scripted import MAX_TOKENS, ScriptedEngine, ScriptedLLM
from tests.server.serving import keep_little_unread


def compile_for_ever(_: GuidedParams, withdrawal: Withdrawal) -> None:
    while True:
        withdrawal.check()
        time.sleep(0.01)


def main(folder: str, drain_timeout: str, max_run: str) -> None:
    tokenizer = Tokenizer.from_path(Path(folder) / "target")
    engine = ScriptedEngine(tokenizer, "The eagle flies over the sea. " * 400)
    engine.max_run = int(max_run)
    engine.before_step = lambda: time.sleep(0.02)
    settings = ServerSettings(port=0, drain_timeout=float(drain_timeout))
    client = EngineClient(engine, 64, Metrics("toy"))
    limits = PromptLimits(2 * MAX_TOKENS, tokenizer.vocab_size)
    served = Served(
        ScriptedLLM(tokenizer), "toy", limits, "aquiline-test", ToolPrompts(tokenizer, "auto"), compile_for_ever
    )
    app = create_app(served, client, settings, "0")
    server = DrainingServer(uvicorn_config(app, settings), client, settings.drain_timeout)

    def tell(address: str) -> None:
        keep_little_unread(server)
        print(address, flush=True)

    server.on_ready = tell
    server.run()
    assert not engine.has_unfinished and client.num_unfinished == 0
    print("stopped", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
