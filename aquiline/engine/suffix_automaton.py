"""Which part of a text was there before, and what followed it: a suffix automaton that grows token by token."""

from __future__ import annotations

from typing import NamedTuple


class Match(NamedTuple):
    """A part of the text that was found in it.

    Attributes:
        state: of the automaton.
        length: tokens in the part.
    """

    state: int
    length: int


NO_MATCH = Match(0, 0)


class SuffixAutomaton:
    """The smallest automaton that reads exactly the parts of a text (Blumer et al., Theoretical Computer Science 1985).

    A state stands for parts that end at the same places. The longest of them has `_lengths[state]` tokens, the others
    are its suffixes, and `_links[state]` is the state of the first suffix that ends at more places.

    Appending a token and reading one take constant time on average over any text: each new suffix link undoes a step of
    an earlier one, and the transitions that are copied when a state is split are among the at most 3 that any text
    leaves behind for each of its tokens. There are at most 2 states per token.

    Worked example, the text a b c a b:

        longest repeated suffix    a b          `own_match`, length 2
        its continuations          c            `continuations`, with the state of a b c
        behind that                a
    """

    def __init__(self) -> None:
        # The transitions of a state are in the order in which they were last taken.
        self._transitions: list[dict[int, int]] = [{}]
        self._links: list[int] = [-1]
        self._lengths: list[int] = [0]
        self._whole = 0

    @property
    def num_states(self) -> int:
        return len(self._links)

    @property
    def num_transitions(self) -> int:
        return sum(map(len, self._transitions))

    @property
    def num_tokens(self) -> int:
        return self._lengths[self._whole]

    def append(self, token_id: int) -> None:
        """Add a token to the end of the text."""
        transitions, links, lengths = self._transitions, self._links, self._lengths
        new = len(links)
        transitions.append({})
        lengths.append(lengths[self._whole] + 1)
        state = self._whole
        self._whole = new
        while state >= 0 and token_id not in transitions[state]:
            transitions[state][token_id] = new
            state = links[state]
        if state < 0:
            links.append(0)
            return
        follower = transitions[state].pop(token_id)
        transitions[state][token_id] = follower
        if lengths[follower] == lengths[state] + 1:
            links.append(follower)
        else:
            links.append(new + 1)
            self._split(state, token_id, follower)

    def _split(self, state: int, token_id: int, follower: int) -> None:
        """Give the parts of `follower` that `state` leads to a state of their own: they now end at one more place."""
        transitions, links, lengths = self._transitions, self._links, self._lengths
        shorter = len(lengths)
        transitions.append(dict(transitions[follower]))
        links.append(links[follower])
        lengths.append(lengths[state] + 1)
        links[follower] = shorter
        while state >= 0 and transitions[state].get(token_id) == follower:
            transitions[state][token_id] = shorter
            state = links[state]

    def own_match(self) -> Match:
        """The longest suffix of the text that also ends somewhere before its end."""
        return self.shortened(Match(self._whole, 0))

    def continuations(self, match: Match) -> dict[int, int]:
        """Tokens that followed the part somewhere in the text, and the state of the part with each of them behind it.

        The token that was added last comes last. A token counts as added to the longest part that it had already
        followed, and to all longer ones. The caller must not change the answer.
        """
        return self._transitions[match.state]

    def shortened(self, match: Match) -> Match:
        """The longest suffix of the part that ends at more places; the empty part is its own."""
        link = self._links[match.state] if match.state else 0
        return Match(link, self._lengths[link])

    def read(self, match: Match, token_id: int) -> Match:
        """The longest suffix of another text that is a part of this one.

        Args:
            match: that of the other text without its new token.
        """
        state, length = self.settled(match)
        while token_id not in self._transitions[state]:
            if not state:
                return NO_MATCH
            state = self._links[state]
            length = self._lengths[state]
        return Match(self._transitions[state][token_id], length + 1)

    def settled(self, match: Match) -> Match:
        """The match of the same part after the text may have grown.

        All other methods want a match that was found, or settled, since the last token was added.
        """
        state, length = match
        while state and self._lengths[self._links[state]] >= length:
            state = self._links[state]
        return Match(state, length)
