"""How far the distributions of native kernels are from those of the same weights in float32, on given tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from aquiline.config import EngineConfig, Quantization, SchedulerConfig, SpeculativeConfig
from aquiline.errors import PromptError, UnsupportedFeatureError
from aquiline.kernels import CONTEXT_CHUNK, AttentionGroup, AttentionInputs
from aquiline.llm import LLM, Conversation
from aquiline.models.llama import ForwardRows
from aquiline.request import SamplingParams
from aquiline.speculation import parse_speculation

# Rows whose logits are held at once.
ROWS_PER_CHUNK = 128
# A text is cut into sequences of at most so many tokens.
MOST_TOKENS = 2048


@dataclass(frozen=True)
class AccuracyModels:
    """The same model on native kernels, in one or more ways, and in float32 on PyTorch."""

    native: dict[str, LLM]
    reference: LLM

    @classmethod
    def load(
        cls, model: str, config: EngineConfig, quantizations: Sequence[Quantization], num_threads: int | None
    ) -> AccuracyModels:
        """Load all of them; each native one has the settings of `config` and one of the quantizations.

        Raises:
            UserError: a model that cannot be found, read, or run on native kernels.
        """
        plain = SpeculativeConfig(mode=parse_speculation("off"))
        base = replace(config, speculative=plain, backend="cpu")
        native: dict[str, LLM] = {
            kind: LLM(model, draft=None, config=replace(base, quantization=kind), num_threads=num_threads)
            for kind in quantizations
        }
        # The reference comes last: it is the one that needs PyTorch's threads.
        scheduler = SchedulerConfig(max_num_seqs=16)
        exact = EngineConfig(dtype="float32", backend="pytorch", speculative=plain, scheduler=scheduler)
        return cls(native, LLM(model, draft=None, config=exact, num_threads=num_threads))

    def sequences_of_text(self, text: str) -> list[list[int]]:
        """The tokens of a text, cut where the context ends.

        Raises:
            PromptError: fewer than two tokens.
        """
        token_ids = self.reference.tokenizer.encode(text)
        if len(token_ids) < 2:
            raise PromptError("the text has fewer than two tokens; give a longer one")
        length = min(MOST_TOKENS, self.reference.engine.sizes.max_model_len)
        return [token_ids[first : first + length] for first in range(0, len(token_ids), length)]

    def sequences_of_answers(self, conversations: Sequence[Conversation], num_tokens: int) -> list[list[int]]:
        """Prompts with the answers that the float32 model gives at temperature 0, at most `num_tokens` each."""
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens)
        outputs = self.reference.chat(list(conversations), params)
        return [[*output.prompt_token_ids, *output.outputs[0].token_ids] for output in outputs]


@dataclass
class Divergence:
    """Tally of one model's distributions against the reference's.

    Attributes:
        divergences: Kullback-Leibler divergence of every position so far, KL(reference || model) in nats.
        num_agreeing: positions with the same most likely token.
    """

    divergences: list[float] = field(default_factory=list)
    num_agreeing: int = 0

    def add(self, expected: Tensor, found: Tensor) -> None:
        """Count rows of logits, [num_rows, vocab] each."""
        expected_logs, found_logs = torch.log_softmax(expected, dim=-1), torch.log_softmax(found, dim=-1)
        self.divergences += (expected_logs.exp() * (expected_logs - found_logs)).sum(dim=-1).tolist()
        self.num_agreeing += int((expected.argmax(dim=-1) == found.argmax(dim=-1)).sum())

    def figures(self) -> dict[str, Any]:
        """Figures by name, ready for JSON; `worst_position` counts over all sequences in order."""
        worst = max(range(len(self.divergences)), key=self.divergences.__getitem__)
        return {
            "mean_kl": float(f"{sum(self.divergences) / len(self.divergences):.4g}"),
            "top1_agreement": round(self.num_agreeing / len(self.divergences), 5),
            "worst_kl": float(f"{self.divergences[worst]:.4g}"),
            "worst_position": worst,
        }


def measure_accuracy(
    models: AccuracyModels, sequences: Sequence[Sequence[int]], on_tokens: Callable[[int], None] | None = None
) -> list[dict[str, Any]]:
    """Give every model the same tokens and compare what it expects next, position by position.

    Args:
        on_tokens: called with the number of tokens compared so far.

    Returns:
        A row per native model, ready for JSON: `quantization`, `num_tokens` and the figures of `Divergence`.

    Raises:
        UnsupportedFeatureError: a native model fell back on PyTorch.
    """
    for kind, llm in models.native.items():
        if llm.backend != "cpu":
            raise UnsupportedFeatureError(
                f"with quantization {kind} this model runs on PyTorch; there is nothing native"
            )
    tallies = {kind: Divergence() for kind in models.native}
    num_done = 0
    for token_ids in sequences:
        walks = {kind: _logits(llm, token_ids) for kind, llm in models.native.items()}
        for expected in _logits(models.reference, token_ids):
            for kind, walk in walks.items():
                tallies[kind].add(expected, next(walk))
            num_done += len(expected)
            if on_tokens is not None:
                on_tokens(num_done)
    return [{"quantization": kind, "num_tokens": num_done, **tally.figures()} for kind, tally in tallies.items()]


def _logits(llm: LLM, token_ids: Sequence[int]) -> Iterator[Tensor]:
    """Logits of all positions of a sequence, some rows at a time."""
    model, memory = llm.models.target, llm.engine.pool.target_layers
    for first in range(0, len(token_ids), ROWS_PER_CHUNK):
        end = min(first + ROWS_PER_CHUNK, len(token_ids))
        states = model.forward(_rows(token_ids, first, end), memory)
        yield model.logits(states.hidden_states)


def _rows(token_ids: Sequence[int], first: int, end: int) -> ForwardRows:
    """Rows of the positions first .. end - 1; logical position i lies in slot i."""
    positions = torch.arange(first, end)
    # Entries past the end point to slots that are written already: nobody sees them.
    key_slots = torch.arange(-(-end // CONTEXT_CHUNK) * CONTEXT_CHUNK).clamp(max=end - 1)
    group = AttentionGroup(0, key_slots.unsqueeze(0), (positions + 1).unsqueeze(0))
    return ForwardRows(torch.tensor(token_ids[first:end]), positions, positions.clone(), AttentionInputs((group,)))
