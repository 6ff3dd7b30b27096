"""Which tensors a model has, by canonical name, and their shapes."""

from __future__ import annotations

from aquiline.models.model_config import EagleConfig, LlamaConfig

Shapes = dict[str, tuple[int, ...]]

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
ID_MAP = "draft_to_target_ids"


def expected_target_tensors(config: LlamaConfig) -> Shapes:
    """Name and shape of every tensor of a target, as Hugging Face names them; linear weights are [out, in].

    A tied model has no `lm_head.weight`: its head is the embedding.
    """
    shapes: Shapes = {
        EMBEDDING: (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
    }
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}."
        shapes |= _layer_shapes(config, prefix, config.hidden_size)
        shapes[f"{prefix}input_layernorm.weight"] = (config.hidden_size,)
    return shapes


def expected_draft_tensors(config: EagleConfig) -> Shapes:
    """Name and shape of every tensor of a draft, by canonical name, the id map [draft_vocab_size] included.

    Layer 0 of an eagle3 draft reads embedding and hidden state side by side: its q, k and v are 2 * hidden wide. Layer
    0 of an eagle1 draft has no input norm, and the draft no final one.
    """
    layers, hidden = config.layers, config.layers.hidden_size
    is_eagle3 = config.kind == "eagle3"
    input_size = config.feature_size if is_eagle3 else hidden + config.feature_size
    shapes: Shapes = {"fc.weight": (hidden, input_size), ID_MAP: (config.draft_vocab_size,)}
    if config.fc_bias:
        shapes["fc.bias"] = (hidden,)
    shapes |= {name: (config.feature_size // len(config.feature_norms),) for name in config.feature_norms}
    if is_eagle3:
        shapes["norm.weight"] = (hidden,)
        shapes["layers.0.hidden_norm.weight"] = (hidden,)
    if config.has_own_head:
        shapes[HEAD] = (config.draft_vocab_size, hidden)
    if config.has_own_embedding:
        shapes["embed_tokens.weight"] = (layers.vocab_size, hidden)
    for index in range(config.num_layers):
        prefix = f"layers.{index}."
        shapes |= _layer_shapes(layers, prefix, 2 * hidden if is_eagle3 and index == 0 else hidden)
        if is_eagle3 or index > 0:
            shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
    return shapes


def _layer_shapes(config: LlamaConfig, prefix: str, input_size: int) -> Shapes:
    """One decoder layer without its input norm; `input_size` is the width that q, k and v read."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    query_size, key_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    weights = {
        "self_attn.q_proj": (query_size, input_size),
        "self_attn.k_proj": (key_size, input_size),
        "self_attn.v_proj": (key_size, input_size),
        "self_attn.o_proj": (hidden, query_size),
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
    }
    shapes: Shapes = {f"{prefix}{name}.weight": shape for name, shape in weights.items()}
    shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    for name, shape in weights.items():
        if _has_bias(config, name):
            shapes[f"{prefix}{name}.bias"] = shape[:1]
    return shapes


def _has_bias(config: LlamaConfig, name: str) -> bool:
    if name.startswith("mlp."):
        return config.mlp_bias
    return config.attention_output_bias if name.endswith("o_proj") else config.attention_bias
