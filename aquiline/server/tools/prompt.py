"""How tools and calls are shown to a model.

Chat templates that know tools show them their own way. For any other model a system message describes them, calls are
written out in the text of assistant messages, and their results come as user messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from typing import Any

from aquiline.errors import PromptError
from aquiline.server.settings import ToolFormat
from aquiline.server.tools.events import ToolParser
from aquiline.server.tools.hermes import BEGIN, END, HermesParser
from aquiline.server.tools.llama3 import Llama3Parser
from aquiline.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, Any]]
PROBE_NAME = "aquiline_probe"
HERMES_RULE = f'A call is {BEGIN}{{"name": NAME, "arguments": OBJECT}}{END}, and you may write several of them.'
LLAMA3_RULE = 'To call one, answer with nothing but {"name": NAME, "parameters": OBJECT}.'


class ToolPrompts:
    """Writes the conversations of one model.

    Args:
        tool_format: how the model writes calls; `auto` is Hermes's manner, unless the chat template shows tools and
            has no such marker.

    Attributes:
        tool_format: how it is, `auto` resolved.
        is_native: the chat template shows tools.
    """

    def __init__(self, tokenizer: Tokenizer, tool_format: ToolFormat) -> None:
        self._tokenizer = tokenizer
        shown = self._probe()
        self.is_native = PROBE_NAME in shown
        is_llama3 = tool_format == "llama3" or (tool_format == "auto" and self.is_native and BEGIN not in shown)
        self.tool_format: ToolFormat = "llama3" if is_llama3 else "hermes"

    def encode(self, messages: Messages, tools: Messages | None, add_generation_prompt: bool) -> list[int]:
        """Token ids of a conversation.

        Raises:
            PromptError: the chat template refuses it, or there is none.
        """
        if not self.is_native:
            messages = [self._written_out(message) for message in messages]
            if tools:
                messages = _with_system(messages, self._describe(tools))
            tools = None
        return self._tokenizer.apply_chat_template(messages, add_generation_prompt, tools or None)

    def new_parser(self, names: Set[str]) -> ToolParser:
        """A parser for one answer in which the functions `names` may be called."""
        return HermesParser(names) if self.tool_format == "hermes" else Llama3Parser(names)

    def _probe(self) -> str:
        function = {"name": PROBE_NAME, "description": "", "parameters": {"type": "object", "properties": {}}}
        try:
            messages = [{"role": "user", "content": "a"}]
            return self._tokenizer.render_chat(messages, tools=[{"type": "function", "function": function}])
        except PromptError:
            return ""

    def _describe(self, tools: Messages) -> str:
        lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
        rule = HERMES_RULE if self.tool_format == "hermes" else LLAMA3_RULE
        return "\n".join(["These functions can be called when they help, one JSON object per line:", *lines, rule])

    def _written_out(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if message["role"] == "tool":
            return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
        plain = {name: value for name, value in message.items() if name != "tool_calls"}
        calls = [self._write_call(call["function"]) for call in message.get("tool_calls", ())]
        if calls:
            parts = [plain["content"], *calls] if plain["content"] else calls
            plain["content"] = "\n".join(parts)
        return plain

    def _write_call(self, function: Mapping[str, Any]) -> str:
        key = "arguments" if self.tool_format == "hermes" else "parameters"
        call = json.dumps({"name": function["name"], key: function["arguments"]}, ensure_ascii=False)
        return f"{BEGIN}{call}{END}" if self.tool_format == "hermes" else call


def _with_system(messages: Messages, text: str) -> list[Mapping[str, Any]]:
    """The messages with `text` at the beginning of the system message, which is added where there is none."""
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "content": f"{text}\n\n{messages[0]['content']}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
