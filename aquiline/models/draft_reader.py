"""config.json of a draft model, in every layout that is in use.

    plain          SafeAILab EAGLE-1, 2 and 3, SpecForge, SGLang: a Llama config with a few keys more
    wrapped        early vLLM: {"model_type": "eagle", "model": {a Llama config}, "eagle_fc_bias": ...}
    speculators    {"speculators_model_type": "eagle3", "transformer_layer_config": {a Llama config}, ...}

Layers to capture have two conventions. Here, as in SpecForge's `eagle_config`, id j means the OUTPUT of layer j;
speculators' id i means the state that ENTERS layer i. Worked example, a 30-layer target with the default layers:

    speculators' ids      2   15   27
    ids kept here         1   14   26
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from aquiline.errors import DraftMismatchError, ModelFormatError, UnsupportedFeatureError
from aquiline.models.config_fields import ConfigFields, read_json_object
from aquiline.models.config_reader import HARMLESS_KEYS, check_architectures, check_model_type, read_llama_fields
from aquiline.models.draft_metadata import METADATA_KEY
from aquiline.models.model_config import EagleConfig, LlamaConfig, default_aux_layer_ids
from aquiline.models.tensor_shapes import HEAD

AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"
EMBEDDING = "embed_tokens.weight"
EAGLE3_TENSORS = frozenset({"d2t", "t2d", "norm.weight", "layers.0.hidden_norm.weight"})
EAGLE1_ARCHITECTURES = ("LlamaForCausalLMEagle", "EagleLlamaForCausalLM", "EAGLEModel")
EAGLE3_ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel")
PLAIN_ARCHITECTURES = ("LlamaForCausalLM", *EAGLE1_ARCHITECTURES, *EAGLE3_ARCHITECTURES)
SPECULATORS_HARMLESS = frozenset(
    {"embed_requires_grad", "has_no_defaults_at_init", "model_type", "speculators_version"}
)

# A draft's token ids play no part: the target's decide when an answer ends.
DRAFT_HARMLESS = HARMLESS_KEYS | {METADATA_KEY, "bos_token_id", "eos_token_id"}


def read_draft_config(folder: Path, tensor_names: Collection[str], target: LlamaConfig) -> EagleConfig:
    """Settings of the draft in a folder, checked against its target.

    Args:
        tensor_names: canonical names of the tensors that the folder holds; they tell which of embedding and head the
            draft brings itself, whatever `tie_word_embeddings` says, and EAGLE-3 from EAGLE-1 where the settings do
            not.

    Raises:
        ModelFormatError: a key missing, unknown, of another type, out of range, or at odds with another one.
        DraftMismatchError: vocabulary, width or layers are not the target's.
        UnsupportedFeatureError: a kind of draft that Aquiline does not run.
    """
    source = str(folder / "config.json")
    fields = ConfigFields(read_json_object(folder / "config.json"), source)
    if fields.has("speculators_model_type"):
        config = _read_speculators(fields, target)
    elif fields.has("model"):
        config = _read_wrapped(fields)
    elif _is_eagle3(fields, tensor_names):
        config = _read_plain_eagle3(fields, target)
    else:
        config = _read_plain_eagle1(fields)
    config = replace(config, has_own_embedding=EMBEDDING in tensor_names, has_own_head=HEAD in tensor_names)
    _check_fits(source, config, target)
    _check_shared(source, config, target)
    return replace(config, layers=replace(config.layers, tie_word_embeddings=False))


def _is_eagle3(fields: ConfigFields, tensor_names: Collection[str]) -> bool:
    """The architecture's name decides; where it is just Llama, whatever only EAGLE-3 has."""
    architectures = fields.texts("architectures")
    if any(name in EAGLE3_ARCHITECTURES for name in architectures):
        return True
    if any(name in EAGLE1_ARCHITECTURES for name in architectures):
        return False
    return fields.has("draft_vocab_size") or fields.has("eagle_config") or not EAGLE3_TENSORS.isdisjoint(tensor_names)


def _read_plain_eagle1(fields: ConfigFields) -> EagleConfig:
    """SafeAILab's layout of EAGLE-1 and EAGLE-2: `bias` is fc's, and true where it is missing."""
    check_model_type(fields, ("llama",))
    check_architectures(fields, PLAIN_ARCHITECTURES)
    config = _build_eagle1(read_llama_fields(fields), fields.boolean("bias", True))
    fields.demand({"draft_vocab_size": (config.layers.vocab_size,)})
    fields.refuse_unread(DRAFT_HARMLESS)
    return config


def _read_wrapped(fields: ConfigFields) -> EagleConfig:
    """Early vLLM's layout of EAGLE-1 and EAGLE-2: `eagle_fc_bias` is fc's bias, and false where it is missing."""
    check_model_type(fields, ("eagle",))
    check_architectures(fields, EAGLE1_ARCHITECTURES)
    model = fields.section("model")
    assert model is not None
    check_model_type(model, ("llama",))
    check_architectures(model, PLAIN_ARCHITECTURES)
    layers, fc_bias = read_llama_fields(model), fields.boolean("eagle_fc_bias", False)
    if model.boolean("bias", fc_bias) != fc_bias:
        raise model.wrong("bias", f"eagle_fc_bias is {str(fc_bias).lower()}; make them agree")
    fields.demand({"truncated_vocab_size": (layers.vocab_size,), "method": ("eagle",), "add_para_norm": (False,)})
    fields.demand({"skip_prenorm": (True,), "skip_output_norm": (True,)})
    model.refuse_unread(DRAFT_HARMLESS)
    fields.refuse_unread(DRAFT_HARMLESS | {"num_lookahead_tokens"})
    return _build_eagle1(layers, fc_bias)


def _read_plain_eagle3(fields: ConfigFields, target: LlamaConfig) -> EagleConfig:
    """SafeAILab's and SpecForge's layout of EAGLE-3; the latter may name layers and options in `eagle_config`."""
    check_model_type(fields, ("llama",))
    check_architectures(fields, PLAIN_ARCHITECTURES)
    if fields.has(AUX_LAYERS):
        raise UnsupportedFeatureError(
            f"{fields.source}: {AUX_LAYERS} at top level may count layer inputs or outputs; "
            "move it into eagle_config, where it counts outputs from 0"
        )
    eagle = fields.section("eagle_config") or ConfigFields({}, fields.source)
    eagle.demand({"use_aux_hidden_state": (True,), "use_mtp_layernorm": (False,)})
    eagle.demand({"use_input_layernorm_in_first_layer": (True,), "use_last_layernorm": (True,)})
    layers = read_llama_fields(fields)
    config = EagleConfig(
        kind="eagle3",
        layers=layers,
        draft_vocab_size=fields.integer("draft_vocab_size", layers.vocab_size),
        target_hidden_size=fields.integer("target_hidden_size", layers.hidden_size),
        aux_layer_ids=eagle.integers(AUX_LAYERS) or default_aux_layer_ids(target.num_layers),
        norm_before_residual=_read_option("norm_before_residual", fields, eagle),
        fc_bias=fields.boolean("bias", False),
        fc_norm=_read_option("fc_norm", fields, eagle),
        norm_before_fc=_read_option("norm_before_fc", fields, eagle),
        norm_output=_read_option("norm_output", fields, eagle),
    )
    eagle.refuse_unread()
    fields.refuse_unread(DRAFT_HARMLESS)
    return config


def _read_speculators(fields: ConfigFields, target: LlamaConfig) -> EagleConfig:
    """The speculators layout; `norm_before_residual` is true where it is missing."""
    fields.demand({"speculators_model_type": ("eagle3",), "tie_word_embeddings": (False,)})
    check_architectures(fields, EAGLE3_ARCHITECTURES)
    layer_fields = fields.section("transformer_layer_config")
    if layer_fields is None:
        raise fields.wrong("transformer_layer_config", "it must hold the settings of the draft's layers")
    check_model_type(layer_fields, ("llama",))
    check_architectures(layer_fields, PLAIN_ARCHITECTURES)
    layers = read_llama_fields(layer_fields)
    layer_fields.refuse_unread(DRAFT_HARMLESS)
    run = fields.section("speculators_config") or ConfigFields({}, fields.source)
    run.demand({"algorithm": ("eagle3",)})
    run.refuse_unread(("proposal_methods", "default_proposal_method", "verifier"))
    entered_layers = fields.integers(AUX_LAYERS)
    config = EagleConfig(
        kind="eagle3",
        layers=layers,
        draft_vocab_size=fields.integer("draft_vocab_size"),
        target_hidden_size=fields.integer("target_hidden_size", layers.hidden_size),
        aux_layer_ids=tuple(i - 1 for i in entered_layers) or default_aux_layer_ids(target.num_layers),
        norm_before_residual=fields.boolean("norm_before_residual", True),
        fc_norm=fields.boolean("fc_norm", False),
        norm_before_fc=fields.boolean("norm_before_fc", False),
        norm_output=fields.boolean("norm_output", False),
    )
    fields.refuse_unread(DRAFT_HARMLESS | SPECULATORS_HARMLESS)
    return config


def _build_eagle1(layers: LlamaConfig, fc_bias: bool) -> EagleConfig:
    return EagleConfig(
        kind="eagle1",
        layers=layers,
        draft_vocab_size=layers.vocab_size,
        target_hidden_size=layers.hidden_size,
        fc_bias=fc_bias,
    )


def _read_option(name: str, fields: ConfigFields, eagle: ConfigFields) -> bool:
    """An option that may stand at top level or in `eagle_config`; false where it is in neither."""
    outside, inside = fields.boolean(name, False), eagle.boolean(name, False)
    if fields.has(name) and eagle.has(name) and outside != inside:
        raise fields.wrong(name, "eagle_config says otherwise; make them agree")
    return outside or inside


def _check_fits(source: str, config: EagleConfig, target: LlamaConfig) -> None:
    """Raise DraftMismatchError when the draft was made for a target of other sizes."""
    layers = config.layers
    if layers.vocab_size != target.vocab_size:
        raise DraftMismatchError(
            f"{source}: vocab_size is {layers.vocab_size}, the target's {target.vocab_size}; use a draft made for it"
        )
    if config.target_hidden_size != target.hidden_size:
        raise DraftMismatchError(
            f"{source}: the draft reads hidden states of {config.target_hidden_size} numbers (target_hidden_size, or "
            f"hidden_size without it), the target has {target.hidden_size}; use a draft made for it"
        )
    if config.fc_norm and config.norm_before_fc:
        raise ModelFormatError(f"{source}: fc_norm and norm_before_fc are both true; a draft has at most one of them")
    if config.draft_vocab_size > layers.vocab_size:
        raise ModelFormatError(
            f"{source}: draft_vocab_size is {config.draft_vocab_size}; it cannot exceed vocab_size {layers.vocab_size}"
        )
    ids = config.aux_layer_ids
    if any(not 0 <= layer_id < target.num_layers for layer_id in ids):
        raise DraftMismatchError(
            f"{source}: the draft reads the outputs of layers {list(ids)} (from {AUX_LAYERS}, or the default), "
            f"the target has {target.num_layers} layers, 0 to {target.num_layers - 1}; use a draft made for it"
        )
    if list(ids) != sorted(set(ids)):
        raise ModelFormatError(
            f"{source}: the layers to read are {list(ids)} (from {AUX_LAYERS}, or the default); they must ascend"
        )


def _check_shared(source: str, config: EagleConfig, target: LlamaConfig) -> None:
    """Raise when the draft leaves out an embedding or head for which the target's cannot stand in."""
    hidden_size = config.layers.hidden_size
    for name, is_own in ((EMBEDDING, config.has_own_embedding), (HEAD, config.has_own_head)):
        if not is_own and hidden_size != target.hidden_size:
            raise DraftMismatchError(
                f"{source}: the draft has no {name} of its own, and its hidden_size {hidden_size} is not the "
                f"target's {target.hidden_size}, so the target's cannot be used"
            )
    if not config.has_own_head and config.draft_vocab_size != target.vocab_size:
        raise ModelFormatError(
            f"{source}: the draft has no {HEAD}, and its draft_vocab_size {config.draft_vocab_size} is not the "
            f"target's {target.vocab_size}, so the target's head cannot be used; fetch the whole draft"
        )
    if config.layers.tie_word_embeddings and config.has_own_embedding and not config.has_own_head:
        raise ModelFormatError(
            f"{source}: tie_word_embeddings is true, with an own {EMBEDDING} and no {HEAD}; "
            "set it to false to use the target's head"
        )
