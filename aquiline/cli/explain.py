"""`aquiline generate --explain`: each step's draft tree, drawn in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from aquiline.cli.output import draw
from aquiline.engine.trace import TreeTrace

VISIBLE_WHITESPACE = str.maketrans({" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"})


class StepView:
    """Draws what one step did to one request."""

    def __init__(
        self, console: Console, token_text: Callable[[int], str], decode: Callable[[Sequence[int]], str]
    ) -> None:
        self._console = console
        self._token_text = token_text
        self._decode = decode

    def show(self, trace: TreeTrace) -> None:
        """Print the tree of `trace`: `✓` marks the accepted path, `★` the bonus token, `≡` what was looked up."""
        draw(self._console, self.draw(trace))
        committed = self._decode(trace.committed_token_ids).translate(VISIBLE_WHITESPACE)
        draw(self._console, Text(f"committed: {committed}\n"), is_wrapped=False)

    def draw(self, trace: TreeTrace) -> Tree:
        """The tree of `trace`, the root first, siblings in the draft's order.

        Worked example, chain of 3 of which 2 are accepted and no stop rule cuts:

            node                 0(root)  1    2    3
            accepted_nodes                1    2
            committed_token_ids           t1   t2 + bonus drawn at node 2
        """
        num_committed = len(trace.committed_token_ids)
        marks = {node: _accepted_mark(place < num_committed) for place, node in enumerate(trace.accepted_nodes)}
        title = (
            f"request {trace.request_id}, step {trace.step}: {len(trace.accepted_nodes)} of {len(trace.tokens) - 1} "
            f"draft tokens accepted, {num_committed} committed"
        )
        tree = Tree(Text(title, style="bold"), guide_style="dim")
        branches = [tree.add(self._label(trace.tokens[0], "root", "bold"))]
        looked_up = set(trace.lookup_nodes)
        for node in range(1, len(trace.tokens)):
            mark = marks.get(node, "")
            source = "≡ " if node in looked_up else ""
            label = self._label(trace.tokens[node], f"{source}{mark}", "bold green" if mark else "dim")
            branches.append(branches[trace.parents[node]].add(label))
        last_node = trace.accepted_nodes[-1] if trace.accepted_nodes else 0
        is_bonus_committed = num_committed > len(trace.accepted_nodes)
        bonus_mark = "★ bonus" if is_bonus_committed else "★ bonus, cut by a stop rule"
        branches[last_node].add(self._label(trace.drawn_tokens[last_node], bonus_mark, "bold yellow"))
        return tree

    def _label(self, token_id: int, mark: str, style: str) -> Text:
        shown = self._token_text(token_id).translate(VISIBLE_WHITESPACE) or f"<{token_id}>"
        return Text(f"{shown}  {mark}".rstrip(), style=style)


def _accepted_mark(is_committed: bool) -> str:
    return "✓" if is_committed else "✓ accepted, cut by a stop rule"
