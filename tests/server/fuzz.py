"""Random bodies, none of which may fail a server.

python -m tests.server.fuzz 5000
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from aquiline.server.protocol.chat import ChatBody
from aquiline.server.protocol.completions import CompletionBody
from tests.server.serving import QUESTION, Running, toy_llm, toy_server, write_toy

JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2**63,
    10**30,
    1e308,
    -0.5,
    "",
    "a",
    "\ud800",
    "\0",
    "鷹" * 50,
    [],
    [[]],
    [None],
]
JUNK += [{}, {"a": {}}, [0], [-1], ["a", 1], [[1], "a"], {"type": "function"}, {"role": "user"}, [{"role": "tool"}]]

TREE = {"type": "object", "properties": {"in": {"type": "array", "items": {"$ref": "#"}}}}
FLY = {"type": "function", "function": {"name": "fly", "parameters": TREE}}
# What the more intricate fields may hold, some of it wrong.
MEANT: dict[str, list[Any]] = {
    "speculation": [
        {"mode": mode}
        for mode in ("off", "auto", "chain:1", "chain:6", "chain:7", "tree:2x2", "paths:0,00", "paths:1", "chain:0",
                     "dynamic:steps=2,topk=2,nodes=4", "dynamic:steps=32,topk=32", "tree:256")
    ],
    "guided_json": [TREE, {"type": "integer"}, '{"type": "string"}', {"$ref": "#/nowhere"}, {"enum": [1, "a"]}],
    "guided_regex": ["[a-z]+", "(a|b)*c?", "(", "a{1,900}", "\\p{L}"],
    "guided_choice": [["a", "b"], ["The eagle"], [""]],
    "guided_grammar": ['root ::= "a" root | "b"', "root ::= root", "root ::= x"],
    "response_format": [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": TREE, "strict": True}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nothing"}}},
    ],
    "structured_outputs": [{"regex": "a+"}, {"json": TREE, "whitespace": "any"}, {"json_object": True}, {}],
    "tools": [[FLY], [FLY, FLY]],
    "tool_choice": ["required", "auto", {"type": "function", "function": {"name": "fly"}}],
    "parallel_tool_calls": [False],
    "stream_tokens": ["single", "many"],
}  # fmt: skip


def random_body(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A body that would be answered, with up to four fields set to something else and two to what may be meant."""
    is_chat = rng.random() < 0.5
    body: dict[str, Any] = {"messages": QUESTION} if is_chat else {"prompt": "a"}
    body |= {"max_tokens": 2, "stream": rng.random() < 0.3}
    fields = list(ChatBody.model_fields if is_chat else CompletionBody.model_fields)
    for name in rng.sample([*fields, "unknown"], rng.choice([1, 1, 1, 2, 4])):
        if name not in ("max_tokens", "max_completion_tokens") or rng.random() < 0.1:
            body[name] = rng.choice(JUNK) if rng.random() < 0.7 else None
    names = [name for name in MEANT if name in fields]
    for name in rng.sample(names, rng.choice([0, 0, 1, 2])):
        body[name] = rng.choice(MEANT[name])
    return ("/v1/chat/completions" if is_chat else "/v1/completions"), body


def fuzz(server: Running, num_bodies: int) -> Counter[int]:
    """Send random bodies; returns how often each status came. Raises AssertionError at one that fails the server."""
    rng = random.Random(0)
    statuses: Counter[int] = Counter()
    with server.http() as http:
        for _ in range(num_bodies):
            path, body = random_body(rng)
            content = json.dumps(body).encode()
            response = http.post(path, content=content, headers={"Content-Type": "application/json"})
            statuses[response.status_code] += 1
            assert response.status_code in (200, 400, 404), (path, body, response.text)
            if response.status_code != 200:
                assert response.json()["error"]["message"]
            assert '"server_error"' not in response.text, (path, body)
        assert http.get("/health").status_code == 200
    return statuses


def main() -> None:
    """Send as many bodies as the command line asks for."""
    with tempfile.TemporaryDirectory() as folder, toy_server(toy_llm(write_toy(Path(folder)))) as server:
        print(dict(fuzz(server, int(sys.argv[1]))))


if __name__ == "__main__":
    main()
