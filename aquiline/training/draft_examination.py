"""From the names of a draft and its target to a report: loads both, lets the target write, and examines the draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aquiline.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculativeConfig
from aquiline.cores import default_num_threads
from aquiline.engine.engine import Engine, EngineModels
from aquiline.engine.sizing import DTYPES
from aquiline.errors import ModelNotFoundError, PromptError
from aquiline.model_store import KNOWN_MODELS, resolve_model
from aquiline.models.assemble import ModelSettings, assemble_target
from aquiline.models.draft_metadata import read_draft_metadata
from aquiline.models.draft_probe import read_text
from aquiline.models.gguf_blocks import KEPT_UNDER
from aquiline.models.interfaces import TargetModel
from aquiline.models.loading import LoadedDraft, LoadedTarget, load_draft, open_target
from aquiline.models.model_config import LlamaConfig
from aquiline.models.tensor_shapes import EMBEDDING, HEAD
from aquiline.request import SamplingParams
from aquiline.shipped_drafts import resolve_draft, shipped_draft
from aquiline.speculation import parse_speculation
from aquiline.tokenizer import Tokenizer
from aquiline.training.doctor import DraftReport, ProgressCallback, examine, layers_to_read
from aquiline.training.draft_mistakes import BorrowedWeights
from aquiline.training.evaluation_prompts import held_out_prompts

Conversation = Sequence[Mapping[str, Any]]
# One of each category, and one more.
PROMPT_STEP = 7
NUM_TOKENS = 64


@dataclass(frozen=True)
class Examination:
    """A draft, its target and what was found.

    Attributes:
        draft: as its file gives it, float32.
    """

    draft_path: Path
    target_path: Path
    draft: LoadedDraft
    target: LlamaConfig
    report: DraftReport


def find_draft(draft: str, target: str | None) -> Path:
    """The folder of a draft; `auto` is the one that comes with a known target.

    Raises:
        ModelNotFoundError: there is none.
    """
    if draft != "auto":
        return resolve_draft(draft)
    if target is None or target not in KNOWN_MODELS:
        named = "no target is named" if target is None else f"the target is {target!r}"
        raise ModelNotFoundError(
            f"auto is the draft of a known model, and {named}; name a folder, or --target "
            f"{' or '.join(sorted(KNOWN_MODELS))}"
        )
    return shipped_draft(KNOWN_MODELS[target].draft)


def find_target(draft: Path, target: str | None) -> Path:
    """The target: as named, or as the draft's own metadata say.

    Raises:
        ModelNotFoundError: there is none under that name, or none is named anywhere.
    """
    name = target or read_draft_metadata(draft).target
    if not name:
        raise ModelNotFoundError(f"{draft} does not say which model it is for; name it with --target")
    return resolve_model(name)


def examine_draft(
    draft_path: Path,
    target_path: Path,
    config: EngineConfig,
    num_threads: int | None,
    conversations: Sequence[Conversation] = (),
    on_progress: ProgressCallback | None = None,
) -> Examination:
    """Load a draft and its target, let the target answer, and examine the draft on the answers.

    Args:
        config: dtype, backend and quantization of the target; the draft is run in float32.
        conversations: what the target answers; none takes prompts that come with Aquiline.

    Raises:
        UserError: a file that cannot be used, a draft for another target, or prompts that do not fit.
    """
    show = on_progress or (lambda description, num_done, num_total: None)
    show("loading", 0, 0)
    loaded = open_target(target_path, DTYPES[config.dtype], kept_types=KEPT_UNDER[config.quantization])
    draft = load_draft(draft_path, loaded.config, torch.float32)
    weights = _borrowed_weights(target_path)
    layers = layers_to_read(draft, loaded.config, weights)
    settings = ModelSettings(
        DTYPES[config.dtype], config.backend, config.quantization, num_threads or default_num_threads()
    )
    model = assemble_target(loaded, layers, settings)
    torch.set_num_threads(settings.num_threads)
    tokenizer = Tokenizer.from_path(target_path)
    longest = min(loaded.config.max_position, draft.config.layers.max_position) - NUM_TOKENS
    prompts = [_encode(tokenizer, messages) for messages in conversations] or _own_prompts(tokenizer, longest)
    texts = _write_answers(model, tokenizer, prompts, config, show)
    readings = []
    for number, text in enumerate(texts):
        show("reading the answers", number, len(texts))
        with torch.inference_mode():
            readings.append(read_text(model, text.token_ids, text.num_prompt_tokens, DTYPES[config.dtype]))
    show("asking the draft", 0, 0)
    report = examine(draft, loaded.config, weights, readings, on_progress)
    return Examination(draft_path, target_path, draft, loaded.config, report)


@dataclass(frozen=True)
class _WrittenText:
    token_ids: list[int]
    num_prompt_tokens: int


def _encode(tokenizer: Tokenizer, messages: Conversation) -> list[int]:
    """The conversation through the chat template, or its last message as it is where there is none."""
    if tokenizer.has_chat_template:
        return tokenizer.apply_chat_template(messages)
    return tokenizer.encode(str(messages[-1]["content"]))


def _own_prompts(tokenizer: Tokenizer, longest: int) -> list[list[int]]:
    """Prompts of every category that fit the context."""
    encoded = [_encode(tokenizer, prompt.messages) for prompt in held_out_prompts()[::PROMPT_STEP]]
    fitting = [token_ids for token_ids in encoded if len(token_ids) <= longest]
    if not fitting:
        raise PromptError(
            f"no prompt that comes with Aquiline leaves {NUM_TOKENS} tokens of the context; give --prompts"
        )
    return fitting


def _write_answers(
    model: TargetModel,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    config: EngineConfig,
    show: ProgressCallback,
) -> list[_WrittenText]:
    """Answers at temperature 0, all prompts together."""
    block_size = config.cache.block_size
    num_blocks = sum(-(-(len(prompt) + NUM_TOKENS) // block_size) for prompt in prompts)
    plain = EngineConfig(
        dtype=config.dtype,
        cache=CacheConfig(block_size=block_size, num_blocks=num_blocks),
        scheduler=SchedulerConfig(max_num_seqs=len(prompts)),
        speculative=SpeculativeConfig(parse_speculation("off")),
    )
    eos_token_ids = tokenizer.eos_token_ids | frozenset(model.config.eos_token_ids)
    engine = Engine(EngineModels(model, None, tokenizer.new_decoder, eos_token_ids), plain)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
    groups = [engine.add_request(str(number), prompt, params) for number, prompt in enumerate(prompts)]
    num_steps = 0
    while engine.has_unfinished:
        engine.step()
        num_steps += 1
        show("answering", min(num_steps, NUM_TOKENS), NUM_TOKENS)
    outputs = [group.output() for group in groups]
    return [
        _WrittenText([*output.prompt_token_ids, *output.outputs[0].token_ids], len(output.prompt_token_ids))
        for output in outputs
    ]


def _borrowed_weights(target_path: Path) -> BorrowedWeights:
    """Embedding and head of the target, one tensor where they are tied."""
    loaded: LoadedTarget = open_target(target_path, torch.float32)
    embedding = loaded.tensors[EMBEDDING]
    return BorrowedWeights(embedding, embedding if loaded.config.tie_word_embeddings else loaded.tensors[HEAD])
