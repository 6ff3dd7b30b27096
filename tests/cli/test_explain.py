from __future__ import annotations

import dataclasses
import io

from rich.console import Console

from aquiline.cli.explain import StepView
from aquiline.engine.trace import TreeTrace

# Tree of two levels under the root `r`: a and b, then c under a and d under b; the target drew b, d and then x.
TRACE = TreeTrace(
    request_id="7",
    step=4,
    tokens=tuple(map(ord, "rabcd")),
    parents=(-1, 0, 0, 1, 2),
    drawn_tokens=tuple(map(ord, "bzdzx")),
    accepted_nodes=(2, 4),
    committed_token_ids=tuple(map(ord, "bdx")),
)


def drawn(trace: TreeTrace) -> list[str]:
    stream = io.StringIO()
    view = StepView(
        Console(file=stream, width=100, highlight=False), chr, lambda token_ids: "".join(map(chr, token_ids))
    )
    view.show(trace)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_the_accepted_path_and_the_bonus_token_are_marked() -> None:
    assert drawn(TRACE) == [
        "request 7, step 4: 2 of 4 draft tokens accepted, 3 committed",
        "└── r  root",
        "    ├── a",
        "    │   └── c",
        "    └── b  ✓",
        "        └── d  ✓",
        "            └── x  ★ bonus",
        "committed: bdx",
        "",
    ]


def test_tokens_behind_a_stop_are_marked_as_cut() -> None:
    lines = drawn(dataclasses.replace(TRACE, committed_token_ids=(ord("b"),)))
    assert lines[4:8] == [
        "    └── b  ✓",
        "        └── d  ✓ accepted, cut by a stop rule",
        "            └── x  ★ bonus, cut by a stop rule",
        "committed: b",
    ]


def test_a_plain_step_shows_only_root_and_drawn_token() -> None:
    plain = TreeTrace("7", 0, (ord("r"),), (-1,), (ord("y"),), (), (ord("y"),))
    assert drawn(plain)[:3] == [
        "request 7, step 0: 0 of 0 draft tokens accepted, 1 committed",
        "└── r  root",
        "    └── y  ★ bonus",
    ]


def test_looked_up_nodes_are_marked_whether_accepted_or_not() -> None:
    lines = drawn(dataclasses.replace(TRACE, lookup_nodes=(3, 4)))
    assert lines[3:6] == ["    │   └── c  ≡", "    └── b  ✓", "        └── d  ≡ ✓"]


def test_whitespace_is_visible_and_markup_is_not_interpreted() -> None:
    spaced = dataclasses.replace(TRACE, tokens=tuple(map(ord, " \n\t[d")))
    text = "\n".join(drawn(spaced))
    assert "└── ·  root" in text
    assert "├── ⏎" in text
    assert "└── [" in text
