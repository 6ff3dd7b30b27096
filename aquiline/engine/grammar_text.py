"""Guides written as EBNF that xgrammar reads.

Reading a guide is Python, which shares the interpreter with every other thread: where it may take long, it belongs in a
process of its own.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from aquiline.engine.grammar_characters import literal, rewritten
from aquiline.engine.grammar_words import require_word
from aquiline.engine.regex_automaton import LARGE, RegexLimits, WorkLimitError, regex_rules
from aquiline.engine.regex_parser import parse_regex
from aquiline.engine.schema_reader import pattern_name, read_schema
from aquiline.engine.schema_strings import PLAIN
from aquiline.errors import InternalError, InvalidParameterError
from aquiline.guided import GuidedParams

MAX_WHITESPACE = 64
ANY_OBJECT = '{"type": "object"}'
# From so many states on, masks are computed as they are needed, because few of them ever are.
MANY_STATES = 300
MAX_LAZY_CHARACTERS = 2**15
# Literals and classes, so that nothing is looked for inside them; then what xgrammar's notation adds to rules.
ADDITION = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|(?P<name>\(=|[\w.-]+(?=\())', re.DOTALL)
# What a character of a JSON string may be written as. Half characters, which come in pairs or are none, go together.
ESCAPE_RULE = re.compile(r"^basic_escape ::= .*$", re.MULTILINE)
ESCAPE = (
    r'basic_escape ::= ["\\/bfnrt] | "u" (([0-9A-CE-Fa-ce-f] {hex} | [Dd] [0-7]) {hex} {hex}'
    r' | [Dd] [89ABab] {hex} {hex} "\\u" [Dd] [C-Fc-f] {hex} {hex})'
).replace("{hex}", "[0-9A-Fa-f]")
# It quotes a part of the guide and may cut a character in two, so that its message is no text.
XGRAMMAR_ERRORS = (RuntimeError, UnicodeDecodeError)


@dataclass(frozen=True, slots=True)
class GuideText:
    """A guide as EBNF.

    Attributes:
        text: rules, one a line; `root` matches the whole answer.
        num_states: rules of it that are states of automata.
        num_other_characters: of all other rules.
    """

    text: str
    num_states: int
    num_other_characters: int

    @property
    def is_lazy(self) -> bool:
        """Whether masks are computed when they are needed: only where each is known to be cheap.

        The mask of an automaton's state is; a rule of any other kind may be as large as its text.
        """
        return self.num_states >= MANY_STATES and self.num_other_characters <= MAX_LAZY_CHARACTERS


def grammar_text(guided: GuidedParams, limits: RegexLimits = LARGE) -> GuideText:
    """A guide as EBNF.

    Args:
        limits: of each automaton.

    Raises:
        WorkLimitError: an automaton, or the schema, goes beyond the limits.
        InvalidParameterError: no grammar can follow the guide, with the place; or no text that ends fits it.
    """
    try:
        return _guide_text(guided, limits)
    except RecursionError:
        raise InvalidParameterError(f"the {guided.kind} of guided lies too deep in itself; make it flatter") from None
    except XGRAMMAR_ERRORS as error:
        raise not_understood(guided, error) from error


def not_understood(guided: GuidedParams, error: RuntimeError | UnicodeDecodeError) -> InvalidParameterError:
    """What xgrammar says of a guide that it cannot read.

    Raises:
        MemoryError: that there is not enough memory.
    """
    message = error.object.decode(errors="ignore") if isinstance(error, UnicodeDecodeError) else str(error)
    if "bad_alloc" in message:
        raise MemoryError from error
    reason = " ".join(message.split()).partition(": ")[2] or message
    return InvalidParameterError(f"the {guided.kind} of guided is not understood: {reason[:300]}")


def _guide_text(guided: GuidedParams, limits: RegexLimits) -> GuideText:
    if guided.grammar is not None:
        return _ebnf(guided.grammar)
    if guided.regex is not None:
        rules = regex_rules(parse_regex(guided.regex, "the regex").whole(), "regex", "text", limits)
        return GuideText("\n".join(("root ::= text0", *rules)), len(rules), 0)
    if guided.choice is not None:
        text = "root ::= " + " | ".join(map(literal, guided.choice))
        return GuideText(text, 0, len(text))
    return _json_grammar(guided, limits)


def _ebnf(source: str) -> GuideText:
    text = rewritten(source)
    printed = _printed(text, source)
    _refuse_additions(printed)
    require_word(printed, "grammar")
    return GuideText(text, 0, len(text))


def _printed(text: str, source: str) -> str:
    """EBNF as xgrammar prints it.

    Args:
        source: the same with the lines and columns that its author knows.
    """
    import xgrammar

    try:
        return str(xgrammar.Grammar.from_ebnf(text))
    except XGRAMMAR_ERRORS:
        xgrammar.Grammar.from_ebnf(source)
        raise


def _refuse_additions(text: str) -> None:
    """xgrammar can also ask for tokens by number, which may be special ones, or look ahead, which it then does not."""
    for found in ADDITION.finditer(text):
        name = found["name"]
        if name is not None:
            shown = "(=...)" if name == "(=" else f"{name}(...)"
            raise InvalidParameterError(
                f"the grammar of guided uses {shown}, which GBNF does not have; write rules of texts and classes"
            )


def _json_grammar(guided: GuidedParams, limits: RegexLimits) -> GuideText:
    import xgrammar

    read = read_schema(ANY_OBJECT if guided.json_object else guided.source)
    if read.work > limits.schema_work:
        raise WorkLimitError("the JSON schema is too large: its counts, divisors and patterns take too many rules")
    schema = json.dumps(read.schema, ensure_ascii=False)
    if guided.whitespace == "any":
        converted = xgrammar.Grammar.from_json_schema(schema, any_whitespace=True, max_whitespace_cnt=MAX_WHITESPACE)
    else:
        converted = xgrammar.Grammar.from_json_schema(schema, any_whitespace=False)
    text = _with_whole_characters(str(converted))
    rules: list[str] = []
    for number, regex in enumerate(read.texts):
        stands_for = f'Regex("{pattern_name(number)}", json_string=true)'
        if not re.search(rf'(?<!\\)"{re.escape(pattern_name(number))}"', text):
            continue  # Nothing that the schema allows is written by it, such as a key of an object that has none.
        rules += regex_rules(regex, "JSON schema's pattern", f"text_{number}_", limits)
        if stands_for not in text:
            raise InternalError(f"xgrammar's conversion of a JSON schema has no rule {stands_for}; its version is new")
        text = text.replace(stands_for, f"text_{number}_0")
    whole = "\n".join((text, *rules))
    if read.is_recursive:
        require_word(whole, "JSON schema")
    return GuideText(whole, len(rules), len(text))


def _with_whole_characters(text: str) -> str:
    """What xgrammar makes of a JSON schema; there, classes that are negated stand for characters of strings."""
    text = ESCAPE_RULE.sub(lambda _: ESCAPE, rewritten(text, PLAIN))
    if '"u" [' in text:
        raise InternalError("xgrammar's conversion of a JSON schema writes half characters; its version is new")
    return text
