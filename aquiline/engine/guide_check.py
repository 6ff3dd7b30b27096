"""What is wrong with a guide, found before there is a model that follows it."""

from __future__ import annotations

import re

from aquiline.engine.grammar import SMALL_SOURCE_CHARACTERS
from aquiline.engine.grammar_text import grammar_text
from aquiline.engine.regex_automaton import SMALL, WorkLimitError
from aquiline.guided import GuidedParams

# In EBNF; counts of counts may ask for any amount of memory.
COUNT = re.compile(r"\{\s*[\d,]")


def check_guide(guided: GuidedParams) -> None:
    """Refuse a guide as an engine would; one that may be large is left to the engine, which reads it within its limits.

    Raises:
        InvalidParameterError: no grammar can follow the guide, with the place; or no text that ends fits it.
    """
    if len(guided.source) > SMALL_SOURCE_CHARACTERS or (guided.grammar and COUNT.search(guided.grammar)):
        return
    try:
        grammar_text(guided, SMALL)
    except WorkLimitError:
        return
