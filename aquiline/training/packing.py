"""From examples to the rows that are computed together, and the order in which a run sees them.

A draft row pairs the feature of position p with the token at p + 1; it proposes the token at p + 2, and its label is
what the target says at p + 1. Self-fed step i of the row replaces the feature by its own output and moves on by one.

Worked example, tokens t0..t5 of which a2..a5 are the answer (t1 ends the prompt, a5 ends the answer):

    position            0    1    2    3    4    5
    token               t0   t1   a2   a3   a4   a5
    row 0, step 0       h0   t1                          proposes a2: not trained, a2 is never drafted in serving
    row 1, step 0            h1   a2                     proposes a3, label from the target at 2
    row 1, step 1            x    a3                     proposes a4, label from the target at 3
    row 3, step 0                      h3   a4           proposes a5, label from the target at 4
    row 4, step 0                           h4   a5      proposes what follows the answer: not trained

So step i of row p is trained when the tokens p + 1 .. p + 2 + i all belong to one answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from aquiline.training.examples import TrainingExample


@dataclass(frozen=True)
class Pack:
    """Conversations whose rows are computed together, one behind the other; none sees another.

    A conversation of n tokens, up to its last answer token, has the n - 1 rows that have a next token.

    Attributes:
        example_ids: index of each conversation in the data.
        token_ids, next_token_ids, positions: of all rows; positions begin at 0 in each conversation.
        runs_ahead: how many tokens of one answer begin at the row's next token; 0 where that is no answer token.
        lengths: rows of each conversation.
    """

    example_ids: tuple[int, ...]
    token_ids: Tensor  # [num_rows]
    next_token_ids: Tensor  # [num_rows]
    positions: Tensor  # [num_rows]
    runs_ahead: Tensor  # [num_rows]
    lengths: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        return sum(self.lengths)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First row of each conversation."""
        return (0, *accumulate(self.lengths[:-1]))

    def trained_rows(self, step: int) -> Tensor:
        """Rows that are trained at a self-fed step, ascending; those of a later step are among them."""
        return (self.runs_ahead >= 2 + step).nonzero().flatten()

    @cached_property
    def label_rows(self) -> Tensor:
        """Rows at which the target's word is a label, ascending: one behind each that is trained. [num_labels]"""
        return self.trained_rows(0) + 1

    @property
    def num_trained(self) -> int:
        """Rows that are trained at step 0."""
        return len(self.label_rows)

    def part(self, numbers: Sequence[int]) -> Pack:
        """Some of the conversations, by their place in the pack."""
        rows = torch.cat([torch.arange(self.starts[n], self.starts[n] + self.lengths[n]) for n in numbers])
        return Pack(
            tuple(self.example_ids[n] for n in numbers),
            self.token_ids[rows],
            self.next_token_ids[rows],
            self.positions[rows],
            self.runs_ahead[rows],
            tuple(self.lengths[n] for n in numbers),
        )


def digest_of(token_ids: Sequence[int]) -> str:
    """In hexadecimal."""
    return hashlib.sha256(np.array(token_ids, dtype=np.int64).tobytes()).hexdigest()


@dataclass(frozen=True)
class ExampleIndex:
    """What a run must know of all examples.

    Attributes:
        num_trained: rows of each example that are trained at step 0: pairs of answer tokens that follow each other.
        num_rows: rows of each example: its tokens before the last answer token.
        digest: of all token ids and masks, in hexadecimal.
    """

    num_trained: tuple[int, ...]
    num_rows: tuple[int, ...]
    digest: str

    @classmethod
    def of(cls, examples: Sequence[TrainingExample], max_length: int) -> ExampleIndex:
        """Read every example once.

        Args:
            max_length: tokens of an example that are used.
        """
        digest = hashlib.sha256()
        num_trained, num_rows = [], []
        for example in examples:
            flags = np.array(example.is_answer[:max_length], dtype=bool)
            digest.update(np.array(example.token_ids, dtype=np.int64).tobytes())
            digest.update(np.array(example.is_answer, dtype=np.uint8).tobytes())
            num_trained.append(int((flags[1:-1] & flags[2:]).sum()))
            num_rows.append(int(flags.nonzero()[0].max(initial=0)))
        return cls(tuple(num_trained), tuple(num_rows), digest.hexdigest())


def make_pack(examples: Sequence[TrainingExample], example_ids: Sequence[int], max_length: int) -> Pack:
    """The rows of some examples, each cut to `max_length` tokens and at its last answer token.

    Each must have an answer token within that length.
    """
    tokens: list[int] = []
    next_tokens: list[int] = []
    positions: list[int] = []
    runs: list[int] = []
    lengths = []
    for index in example_ids:
        example = examples[index]
        flags = example.is_answer[:max_length]
        length = max(position for position, flag in enumerate(flags) if flag)
        tokens += example.token_ids[:length]
        next_tokens += example.token_ids[1 : length + 1]
        positions += range(length)
        runs += _runs(flags[1 : length + 1])
        lengths.append(length)
    return Pack(
        tuple(example_ids),
        torch.tensor(tokens),
        torch.tensor(next_tokens),
        torch.tensor(positions),
        torch.tensor(runs),
        tuple(lengths),
    )


def _runs(flags: Sequence[bool]) -> list[int]:
    """How many flags in a row are set from each on: 1 1 0 1 gives 2 1 0 1."""
    runs, run = [], 0
    for flag in reversed(flags):
        run = run + 1 if flag else 0
        runs.append(run)
    return runs[::-1]


@dataclass(frozen=True)
class StepPlan:
    """The examples of one optimiser step.

    Attributes:
        num_tokens: trained tokens of all of them.
    """

    example_ids: tuple[int, ...]
    num_tokens: int


class DataOrder:
    """Which examples each optimiser step sees: a function of seed, epoch and the number of the step in it.

    Args:
        num_tokens: trained tokens of each example; those without any are never drawn.
        tokens_per_step: a step takes examples until it has that many tokens.
    """

    def __init__(self, num_tokens: Sequence[int], tokens_per_step: int, seed: int) -> None:
        self._num_tokens = num_tokens
        self._tokens_per_step = tokens_per_step
        self._seed = seed
        self.tokens_per_epoch = sum(num_tokens)

    def steps(self, epoch: int, first_step: int = 0) -> Iterator[StepPlan]:
        """The steps of an epoch from `first_step` on."""
        generator = torch.Generator().manual_seed((self._seed * 1_000_003 + epoch) % 2**63)
        order: list[int] = torch.randperm(len(self._num_tokens), generator=generator).tolist()
        chosen: list[int] = []
        total = number = 0
        for index in order:
            if self._num_tokens[index] == 0:
                continue
            chosen.append(index)
            total += self._num_tokens[index]
            if total >= self._tokens_per_step:
                if number >= first_step:
                    yield StepPlan(tuple(chosen), total)
                chosen, total, number = [], 0, number + 1
        if chosen and number >= first_step:
            yield StepPlan(tuple(chosen), total)


def split_into_packs(example_ids: Sequence[int], lengths: Sequence[int], rows_per_pack: int) -> list[list[int]]:
    """Examples in order, as many to a pack as its rows hold; a longer one has a pack of its own.

    Args:
        lengths: tokens of each of `example_ids`.
    """
    packs: list[list[int]] = []
    free = 0
    for index, length in zip(example_ids, lengths, strict=True):
        if not packs or length > free:
            packs.append([])
            free = rows_per_pack
        packs[-1].append(index)
        free -= length
    return packs
