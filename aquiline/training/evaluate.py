"""What a head is worth: acceptance by position and category, and time per committed token.

The target writes the answers once, at temperature 0. Every head is then led along them on the serving kernels, which
gives the acceptance of every static tree at once (`walk`), and finally served for real with a chain and a tree. Served
and predicted counts are equal where kernels compute rows independently; both are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from aquiline.config import CacheConfig, SchedulerConfig, SpeculativeConfig
from aquiline.engine.acceptance_tally import AcceptanceTally
from aquiline.errors import InvalidParameterError
from aquiline.llm import LLM
from aquiline.request import SamplingParams
from aquiline.speculation import SpeculationMode, StaticTree, chain
from aquiline.training.costs import StepCosts, measure_costs
from aquiline.training.evaluation_prompts import EvaluationPrompt
from aquiline.training.evaluation_settings import EvaluationSettings
from aquiline.training.teacher_forced import WrittenText, compute_features, rank_text
from aquiline.training.tree_search import best_trees, spell_shape
from aquiline.training.walk import RankedText, conditional_accuracy, hit_rates, tally

MAX_BATCHED_TOKENS = 4096
NUM_ROUNDS = 40


@dataclass(frozen=True)
class ShapeFigures:
    """One tree with one head; times in milliseconds, with one request."""

    speculate: str
    num_draft_tokens: int
    acceptance_length: float
    step_ms: float

    @property
    def time_per_committed_token_ms(self) -> float:
        return self.step_ms / self.acceptance_length


@dataclass(frozen=True)
class HeadFigures:
    """What one head reached.

    Attributes:
        predicted: by the name of a shape (`chain`, `tree`), from the ranks alone.
        served: the same from serving; empty where it was left out.
        categories: acceptance length of every category by the name of a shape, predicted.
        position_accuracy: conditional acceptance per position over all positions, as training sees them.
        depth_rank: how likely a child is right given that its parent is, [depth][rank].
        shapes: chains and trees with their predicted times.
        plain_ms: plain decoding, per token.
        max_depth: of the chain.
    """

    predicted: dict[str, AcceptanceTally]
    served: dict[str, AcceptanceTally]
    categories: dict[str, dict[str, float]]
    position_accuracy: tuple[float, ...]
    depth_rank: tuple[tuple[float, ...], ...]
    shapes: tuple[ShapeFigures, ...]
    plain_ms: float
    max_depth: int

    @property
    def best_shape(self) -> ShapeFigures:
        """The tree with the lowest time per committed token; plain decoding is not among them."""
        return min(self.shapes, key=lambda shape: shape.time_per_committed_token_ms)

    @property
    def time_per_committed_token_ms(self) -> float:
        """Of the best tree."""
        return self.best_shape.time_per_committed_token_ms

    def as_json(self) -> dict[str, Any]:
        """All figures by name."""
        return {
            "time_per_committed_token_ms": round(self.time_per_committed_token_ms, 4),
            "plain_time_per_token_ms": round(self.plain_ms, 4),
            "best_shape": self.best_shape.speculate,
            "predicted": self._counts(self.predicted),
            "served": self._counts(self.served),
            "categories": {
                category: {name: round(length, 4) for name, length in lengths.items()}
                for category, lengths in self.categories.items()
            },
            "position_accuracy": [round(rate, 4) for rate in self.position_accuracy],
            "acceptance_prior": {"depth_rank": [[round(rate, 5) for rate in row] for row in self.depth_rank]},
            "shapes": [
                {
                    "speculate": shape.speculate,
                    "num_draft_tokens": shape.num_draft_tokens,
                    "acceptance_length": round(shape.acceptance_length, 4),
                    "step_ms": round(shape.step_ms, 4),
                    "time_per_committed_token_ms": round(shape.time_per_committed_token_ms, 4),
                }
                for shape in self.shapes
            ],
        }

    def _counts(self, by_shape: dict[str, AcceptanceTally]) -> dict[str, Any]:
        """Figures of each shape; a chain has a rate for every position, 0 where none was reached."""
        figures = {name: counts.figures() for name, counts in by_shape.items()}
        for name in figures.keys() & {"chain"}:
            rates = figures[name]["conditional_acceptance_per_position"]
            figures[name]["conditional_acceptance_per_position"] = rates + [0.0] * (self.max_depth - len(rates))
        return figures


class HeadEvaluator:
    """Measures heads of one target on the same answers and with the same costs.

    Args:
        llm: the target with any head whose features are those of the heads to come.
        prompts: answered once, here.
        costs: None measures them, here.
        on_progress: called with a word for what is done now, how much of it is done, and of how much.
    """

    def __init__(
        self,
        llm: LLM,
        prompts: Sequence[EvaluationPrompt],
        settings: EvaluationSettings,
        costs: StepCosts | None = None,
        on_progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self._settings = settings
        self._report = on_progress or (lambda name, num_done, num_all: None)
        self._prompts = prompts
        self._llm = self._in_batches(llm, prompts)
        with torch.inference_mode():
            self._texts = self._write_answers()
        if costs is None:
            ids = max((text.token_ids for text in self._texts), key=len)
            costs = measure_costs(
                llm, ids, NUM_ROUNDS, lambda num_done: self._report("measuring steps", num_done, NUM_ROUNDS)
            )
        self.costs = costs

    @property
    def texts(self) -> Sequence[WrittenText]:
        """The answers of the target, with their features."""
        return self._texts

    @property
    def num_answer_tokens(self) -> int:
        """Tokens that the target wrote for all prompts."""
        return sum(text.num_output_tokens for text in self._texts)

    def evaluate(self, head: str, is_served: bool = True) -> HeadFigures:
        """Measure a head.

        Args:
            head: its folder.
            is_served: serve it too, which takes several times as long.

        Raises:
            UserError: a head that cannot be read, or that does not fit the target.
        """
        llm = self._llm.with_draft(head)
        assert llm.models.draft is not None
        memory, max_depth = llm.engine.pool.memory, self._settings.max_depth
        ranked: list[RankedText] = []
        with torch.inference_mode():
            for text in self._texts:
                ranked.append(rank_text(llm.models.draft, text, max_depth, memory))
                self._report("leading the draft along answers", len(ranked), len(self._texts))
        rates = hit_rates(ranked, max_depth, min(self._settings.num_ranks, llm.models.draft.config.draft_vocab_size))
        trees = best_trees(rates, self._settings.tree_sizes)
        compared = {"chain": chain(max_depth)} | ({"tree": trees[max(trees)]} if trees else {})
        shapes = {spell_shape(shape): shape for shape in (*map(chain, range(1, max_depth + 1)), *trees.values())}
        return HeadFigures(
            predicted={name: tally(ranked, shape) for name, shape in compared.items()},
            served={name: self._serve(llm, shape) for name, shape in compared.items()} if is_served else {},
            categories=_by_category(ranked, compared),
            position_accuracy=conditional_accuracy(ranked, max_depth),
            depth_rank=rates,
            shapes=tuple(
                ShapeFigures(
                    spelt,
                    shape.num_draft_tokens,
                    tally(ranked, shape).acceptance_length,
                    self.costs.step_ms(shape),
                )
                for spelt, shape in shapes.items()
            ),
            plain_ms=self.costs.plain_ms,
            max_depth=max_depth,
        )

    def _in_batches(self, llm: LLM, prompts: Sequence[EvaluationPrompt]) -> LLM:
        """The same models with a cache that just holds a batch of answers, and room for whole trees beside prefills."""
        lengths = [len(llm.tokenizer.apply_chat_template(list(prompt.messages))) for prompt in prompts]
        needed = max(lengths) + self._settings.max_tokens
        if needed > llm.models.target.config.max_position:
            raise InvalidParameterError(
                f"the longest prompt of the evaluation has {max(lengths)} tokens and answers up to "
                f"{self._settings.max_tokens}; the model's context holds {llm.models.target.config.max_position}: "
                "ask for fewer tokens or shorter prompts"
            )
        scheduler = SchedulerConfig(self._settings.batch_size, MAX_BATCHED_TOKENS, needed)
        cache = CacheConfig(kv_cache_dtype=llm.config.cache.kv_cache_dtype)
        return llm.reconfigured(replace(llm.config, scheduler=scheduler, cache=cache))

    def _params(self) -> SamplingParams:
        return SamplingParams(temperature=0.0, max_tokens=self._settings.max_tokens)

    def _conversations(self) -> list[list[Any]]:
        return [list(prompt.messages) for prompt in self._prompts]

    def _write_answers(self) -> list[WrittenText]:
        plain = replace(self._llm.config, speculative=SpeculativeConfig(SpeculationMode("off")))
        num_finished = 0

        def count(_: int, output: Any) -> None:
            nonlocal num_finished
            num_finished += output.finished
            self._report("writing answers", num_finished, len(self._prompts))

        outputs = self._llm.reconfigured(plain).chat(self._conversations(), self._params(), on_output=count)
        texts = []
        for prompt, output in zip(self._prompts, outputs, strict=True):
            token_ids = (*output.prompt_token_ids, *output.outputs[0].token_ids)
            features = compute_features(self._llm.models.target, token_ids, self._llm.engine.pool.memory)
            num_prompt_tokens = len(output.prompt_token_ids)
            texts.append(
                WrittenText(prompt.category, token_ids, num_prompt_tokens, self._settings.max_tokens, features)
            )
        return texts

    def _serve(self, llm: LLM, shape: StaticTree) -> AcceptanceTally:
        mode = SpeculationMode(spell_shape(shape), shape)
        counts = AcceptanceTally()
        served = llm.reconfigured(replace(llm.config, speculative=SpeculativeConfig(mode, lookup="off")))
        num_finished = 0

        def count(_: int, output: Any) -> None:
            nonlocal num_finished
            num_finished += output.finished
            self._report(f"serving with {shape.num_draft_tokens} draft tokens", num_finished, len(self._prompts))

        served.chat(self._conversations(), self._params(), on_output=count, on_trace=counts.add)
        return counts


def _by_category(texts: Sequence[RankedText], shapes: dict[str, StaticTree]) -> dict[str, dict[str, float]]:
    categories = dict.fromkeys(text.category for text in texts)
    return {
        category: {
            name: tally([text for text in texts if text.category == category], shape).acceptance_length
            for name, shape in shapes.items()
        }
        for category in categories
    }
