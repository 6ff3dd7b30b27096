"""Renders conversations with a model's own chat template.

Templates come with models, so they are untrusted: they run in a sandbox and see nothing but what is handed to them.
Names, filters and whitespace rules are those of Hugging Face's chat templates.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from aquiline.errors import ModelFormatError, PromptError


class ChatTemplate:
    """One model's chat template.

    Args:
        text: jinja2 source.
        named_tokens: what `bos_token`, `eos_token` and the like stand for.
        source: where the model was read, for messages.
    """

    def __init__(self, text: str, named_tokens: Mapping[str, str], source: Path) -> None:
        self._text = text
        self._named_tokens = dict(named_tokens)
        self._source = source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The conversation as one text.

        Args:
            messages: each with `role` and `content`; content is text or a list of text parts.
            add_generation_prompt: end with the beginning of the assistant's next answer.
            tools: functions that the assistant may call, as objects; not every template shows them.

        Raises:
            PromptError: malformed messages, or the template refuses them.
            ModelFormatError: the template itself is not valid.
        """
        checked, template = check_messages(messages), self._template
        try:
            return template.render(
                messages=checked,
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                documents=None,
                **self._named_tokens,
            )
        # A template is a program. Whatever it trips over (a refusal, a missing field, endless recursion) is about these
        # messages.
        except Exception as error:
            raise PromptError(f"the chat template refuses these messages: {_one_line(error)}") from error

    @cached_property
    def _template(self) -> jinja2.Template:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationBlock]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        try:
            return environment.from_string(self._text)
        # Templates become Python code, whose compiler has limits and errors of its own.
        except Exception as error:
            raise ModelFormatError(f"{self._source}: the chat template is not valid: {_one_line(error)}") from error


def check_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with text parts joined to one text each.

    Raises:
        PromptError: naming the first message that is malformed and why.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise PromptError("messages must be a non-empty list of objects with role and content")
    return [_check_message(index, message) for index, message in enumerate(messages)]


def _check_message(index: int, message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise PromptError(f"messages[{index}] is {message!r}; it must be an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise PromptError(f"messages[{index}] has the role {role!r}; it must be text such as system, user or assistant")
    content = message.get("content")
    if isinstance(content, str) or (content is None and message.get("tool_calls")):
        return dict(message)
    if isinstance(content, list) and content and all(_is_text_part(part) for part in content):
        return {**message, "content": "\n".join(part["text"] for part in content)}
    raise PromptError(f"messages[{index}] has content of type {type(content).__name__}; it must be text or text parts")


def _is_text_part(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks answers for training tools; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.datetime.now().strftime(layout)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
