"""Tiny random models and engines: everything real, only small. Vocabulary 61 (or as asked), float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aquiline.config import (
    AcceptanceRule,
    CacheConfig,
    Dtype,
    EngineConfig,
    KVCacheDtype,
    LookupMode,
    SchedulerConfig,
    SpeculativeConfig,
)
from aquiline.engine.draft import Drafter
from aquiline.engine.engine import Engine, EngineModels
from aquiline.engine.inputs import StepLayout
from aquiline.engine.sampling_inputs import SamplingInputs
from aquiline.engine.tree import DraftTree
from aquiline.models.eagle import EagleModel
from aquiline.models.interfaces import DraftModel, TargetModel
from aquiline.models.llama import LlamaModel
from aquiline.models.loading import expected_draft_tensors, expected_target_tensors
from aquiline.models.model_config import EagleConfig, LlamaConfig, RopeConfig
from aquiline.request import Request, RequestOutput, SamplingParams
from aquiline.speculation import parse_speculation
from aquiline.token_bytes import IncrementalDecoder

VOCAB = 61
EOS = 60


def tiny_llama_config(**changes: object) -> LlamaConfig:
    """Four layers, grouped-query attention, head_dim not hidden_size / num_heads."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        max_position=256,
        rope=RopeConfig(theta=10000.0),
        eos_token_ids=(EOS,),
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def tiny_eagle_config(target: LlamaConfig, kind: str = "eagle3", **changes: object) -> EagleConfig:
    """An EAGLE-3 head over a reduced vocabulary of 40, or an EAGLE-1 head over all of it."""
    is_eagle3 = kind == "eagle3"
    config = EagleConfig(
        kind="eagle3" if is_eagle3 else "eagle1",
        layers=replace(target, num_layers=1, intermediate_size=40),
        draft_vocab_size=min(40, target.vocab_size) if is_eagle3 else target.vocab_size,
        target_hidden_size=target.hidden_size,
        aux_layer_ids=(0, 1, 3) if is_eagle3 else (),
        has_own_head=is_eagle3,
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int, scale: float = 0.25) -> dict[str, Tensor]:
    """Random weights by name; norm weights near 1."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        is_norm = "norm" in name
        tensors[name] = 1.0 + 0.2 * noise if is_norm else scale * noise
    return tensors


def tiny_target(config: LlamaConfig | None = None, seed: int = 0, aux_layer_ids: Sequence[int] = ()) -> LlamaModel:
    """A random target."""
    config = config or tiny_llama_config()
    return LlamaModel(config, random_tensors(expected_target_tensors(config), seed), aux_layer_ids)


def tiny_draft(target: LlamaModel, config: EagleConfig | None = None, seed: int = 1) -> EagleModel:
    """A random draft for a target; with a reduced vocabulary its ids are every other target id, then the rest."""
    config = config or tiny_eagle_config(target.config)
    shapes = {name: shape for name, shape in expected_draft_tensors(config).items() if name != "draft_to_target_ids"}
    tensors = random_tensors(shapes, seed)
    spread = torch.randperm(config.layers.vocab_size, generator=torch.Generator().manual_seed(seed))
    is_reduced = config.draft_vocab_size < config.layers.vocab_size
    every = torch.arange(config.layers.vocab_size)
    tensors["draft_to_target_ids"] = spread[: config.draft_vocab_size].sort().values if is_reduced else every
    return EagleModel(config, tensors, target.embedding, target.head)


def letters(token_id: int) -> bytes:
    """Text of a token: one or two letters, so that stop strings may span tokens."""
    return chr(ord("a") + token_id % 26).encode() * (1 + token_id // 26 % 2)


def new_decoder(prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> IncrementalDecoder:
    """Decoder of `letters`; the end-of-sequence token is special."""

    def token_bytes(token_id: int) -> bytes:
        return b"" if skip_special_tokens and token_id == EOS else letters(token_id)

    return IncrementalDecoder(token_bytes, prompt_token_ids)


@dataclass(frozen=True)
class TinySettings:
    """Settings of a tiny engine, all of them small."""

    speculate: str = "off"
    acceptance: AcceptanceRule = "keyed"
    block_size: int = 4
    num_blocks: int = 64
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 64
    max_model_len: int | None = None
    prefix_cache: bool = True
    check_consistency: bool = False
    poison: bool = True
    dtype: Dtype = "float32"
    kv_cache_dtype: KVCacheDtype = "auto"
    lookup: LookupMode = "auto"
    lookup_tokens: int = 16
    lookup_history: int = 0

    def engine_config(self) -> EngineConfig:
        return EngineConfig(
            dtype=self.dtype,
            cache=CacheConfig(
                block_size=self.block_size,
                num_blocks=self.num_blocks,
                kv_cache_dtype=self.kv_cache_dtype,
                enable_prefix_cache=self.prefix_cache,
            ),
            scheduler=SchedulerConfig(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                max_model_len=self.max_model_len,
            ),
            speculative=SpeculativeConfig(
                parse_speculation(self.speculate),
                self.acceptance,
                lookup=self.lookup,
                lookup_tokens=self.lookup_tokens,
                lookup_history=self.lookup_history,
            ),
            check_consistency=self.check_consistency,
            poison_memory=self.poison,
        )


def tiny_engine(
    settings: TinySettings | None = None,
    target: TargetModel | None = None,
    draft: DraftModel | None = None,
    eos_token_ids: Sequence[int] = (EOS,),
) -> Engine:
    """A real engine around tiny random models."""
    if target is None:
        target = tiny_target(aux_layer_ids=(0, 1, 3))
    if draft is None:
        assert isinstance(target, LlamaModel)
        draft = tiny_draft(target)
    models = EngineModels(target, draft, new_decoder, frozenset(eos_token_ids))
    return Engine(models, (settings or TinySettings()).engine_config())


def finish_all(engine: Engine, after_step: Callable[[Engine], None] | None = None) -> dict[str, RequestOutput]:
    """Step until nothing is left; the last output of every request."""
    outputs: dict[str, RequestOutput] = {}
    for _ in range(10_000):
        if not engine.has_unfinished:
            return outputs
        for output in engine.step():
            outputs[output.request_id] = output
        engine.scheduler.check_integrity()
        if after_step is not None:
            after_step(engine)
    raise AssertionError("the engine does not come to an end")


def run_prompts(
    engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
) -> list[RequestOutput]:
    """Answer prompts together, in order."""
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    for index, (prompt, own) in enumerate(zip(prompts, each, strict=True)):
        engine.add_request(str(index), prompt, own)
    outputs = finish_all(engine)
    return [outputs[str(index)] for index in range(len(prompts))]


def token_ids(outputs: Sequence[RequestOutput]) -> list[tuple[int, ...]]:
    """Token ids of every sample of every output, flattened."""
    return [sample.token_ids for output in outputs for sample in output.outputs]


TokenChooser = Callable[[Request, int, int, int], int]


class ScriptedDrafter(Drafter):
    """The real draft runs, and its cache with it, but the tokens of the tree come from a script.

    Args:
        choose: token for (request, absolute position, rank among siblings, the draft's own proposal).
    """

    @classmethod
    def replace_in(cls, engine: Engine, choose: TokenChooser) -> None:
        """Make an engine draft by script."""
        assert engine._drafter is not None
        scripted = cls.__new__(cls)
        scripted.__dict__.update(engine._drafter.__dict__)
        scripted._choose = choose
        engine._drafter = scripted

    _choose: TokenChooser

    def propose(self, step: StepLayout, sampling: SamplingInputs) -> DraftTree | None:
        tree = super().propose(step, sampling)
        if tree is None:
            return None
        tokens = tree.tokens.clone()
        for index, scheduled in enumerate(step.growing_requests):
            seen: dict[int, int] = {}
            for node in range(1, tree.num_nodes):
                parent = int(tree.parents[index, node])
                rank = seen.get(parent, 0)
                seen[parent] = rank + 1
                position = scheduled.request.num_tokens - 1 + int(tree.depths[index, node])
                tokens[index, node] = self._choose(scheduled.request, position, rank, int(tokens[index, node]))
        return replace(tree, tokens=tokens)
