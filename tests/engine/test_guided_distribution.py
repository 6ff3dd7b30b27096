"""Guided tokens have the law of the masked target, exactly, whatever is drafted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
import torch
import xgrammar
from torch import Tensor

from aquiline.config import AcceptanceRule
from aquiline.engine.grammar import Matcher, new_masks
from aquiline.engine.guidance import MaskTable, TreeNodes, fill_tree
from aquiline.engine.sample import Accepted, Sampler
from aquiline.engine.sampling_inputs import SamplingInputs
from aquiline.kernels.reference.sampling import LogitRules
from tests.engine.toy_decoder import ToyDecoder, many_requests
from tests.kernels.chi_square import REJECTION_LEVEL, p_value

LETTERS = [b"a", b"b", b"c", b""]
EOS = 3
LENGTH = 3
NUM_REQUESTS = 3000
GRAMMAR = 'root ::= "a" ("b" [ab] | "c") | "b" "b"? "c"? | "cc" [abc]'


def new_matcher() -> Matcher:
    info = xgrammar.TokenizerInfo(LETTERS, xgrammar.VocabType.RAW, stop_token_ids=[EOS])
    compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_grammar(GRAMMAR)
    return Matcher(compiled, frozenset((EOS,)), LETTERS)


def allowed_after(path: Sequence[int]) -> list[int]:
    """Tokens that may follow; EOS goes on for ever, so that every text has LENGTH tokens."""
    if path and path[-1] == EOS:
        return [EOS]
    matcher = new_matcher()
    assert all(matcher.accept(token_id) for token_id in path)
    bits = new_masks(1, len(LETTERS))
    matcher.fill(bits, 0)
    return [token_id for token_id in range(len(LETTERS)) if int(bits[0, 0]) >> token_id & 1]


def exact_law(target: Tensor, first: int, temperature: float) -> dict[tuple[int, ...], float]:
    """Probability of every legal beginning, from the masked and renormalised target."""
    law = {}
    for path in product(range(len(LETTERS)), repeat=LENGTH):
        probability, last = 1.0, first
        for place, token_id in enumerate(path):
            allowed = allowed_after(path[:place])
            if token_id not in allowed:
                probability = 0.0
                break
            weights = torch.softmax(target[last, allowed].double() / temperature, dim=0)
            probability *= float(weights[allowed.index(token_id)]) if len(allowed) > 1 else 1.0
            last = token_id
        if probability:
            law[path] = probability
    return law


class GuidedToy:
    """A toy decoder whose requests all follow the grammar."""

    def __init__(self, decoder: ToyDecoder) -> None:
        self.decoder = decoder

    def step(self, inputs: SamplingInputs, matchers: Sequence[Matcher], last: Tensor, positions: Tensor) -> Accepted:
        tree, paths = self.decoder.grow(inputs, last, positions)
        rows = self.decoder.logit_rows(inputs, tree, paths, positions)
        table, numbers = MaskTable(len(LETTERS)), []
        for index, matcher in enumerate(matchers):
            nodes = TreeNodes(tree.tokens[index].tolist(), tree.parents[index].tolist())
            numbers += fill_tree(matcher, nodes, table, table.add(matcher))
        masks = table.masks(numbers, torch.device("cpu"))
        return self.decoder.sampler.accept(inputs, tree if self.decoder.branching else None, replace(rows, masks=masks))


def histories(toy: GuidedToy, rules: LogitRules, first: int) -> list[tuple[int, ...]]:
    """The first LENGTH tokens of many requests; after the end, EOS."""
    inputs = many_requests(NUM_REQUESTS, rules)
    found: list[list[int]] = [[] for _ in range(NUM_REQUESTS)]
    matchers = [new_matcher() for _ in range(NUM_REQUESTS)]
    last = torch.full((NUM_REQUESTS,), first)
    while any(len(tokens) < LENGTH for tokens in found):
        done = torch.tensor([len(tokens) for tokens in found])
        accepted = toy.step(inputs, matchers, last, inputs.prompt_lengths - 1 + done).token_ids.tolist()
        for index, tokens in enumerate(found):
            if len(tokens) >= LENGTH:
                continue
            for token_id in accepted[index]:
                if token_id < 0 or len(tokens) >= LENGTH:
                    break
                assert matchers[index].accept(token_id)
                tokens.append(token_id)
                if token_id == EOS:
                    tokens += [EOS] * (LENGTH - len(tokens))
                    break
            last[index] = tokens[-1]
    return [tuple(tokens) for tokens in found]


@pytest.mark.parametrize("branching", [(), (2,), (2, 2), (1, 1, 1)])
@pytest.mark.parametrize("acceptance", ["keyed", "multi_round"])
def test_texts_have_the_law_of_the_masked_target(acceptance: AcceptanceRule, branching: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(7)
    target, draft = torch.randn(2, 4, 4, generator=generator)
    toy = GuidedToy(ToyDecoder(Sampler(4, acceptance), target, draft, branching))
    rules = LogitRules(temperatures=torch.full((NUM_REQUESTS,), 0.8))
    law = exact_law(target, first=1, temperature=0.8)
    assert abs(sum(law.values()) - 1.0) < 1e-9
    found = histories(toy, rules, first=1)
    assert set(found) <= set(law)
    counts = torch.tensor([found.count(path) for path in law], dtype=torch.float64)
    assert p_value(counts, torch.tensor(list(law.values()), dtype=torch.float64)) > REJECTION_LEVEL


def test_the_test_sees_a_law_that_is_a_little_wrong() -> None:
    generator = torch.Generator().manual_seed(7)
    target, draft = torch.randn(2, 4, 4, generator=generator)
    toy = GuidedToy(ToyDecoder(Sampler(4, "keyed"), target, draft, (2,)))
    found = histories(toy, LogitRules(temperatures=torch.full((NUM_REQUESTS,), 0.8)), first=1)
    wrong = exact_law(target, first=1, temperature=1.0)
    counts = torch.tensor([found.count(path) for path in wrong], dtype=torch.float64)
    assert p_value(counts, torch.tensor(list(wrong.values()), dtype=torch.float64)) < REJECTION_LEVEL
