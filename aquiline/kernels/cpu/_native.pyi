from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

class WeightFormat(Enum):
    bf16 = 0
    q8_0 = 1
    q4_0 = 2
    q4_1 = 3

class ElementType(Enum):
    float32 = 0
    bfloat16 = 1

class ThreadPool:
    def __init__(self, num_threads: int) -> None: ...
    @property
    def num_threads(self) -> int: ...
    def sum_tasks(self, num_tasks: int) -> int: ...
    def sum_items(self, num_items: int) -> int: ...

class WeightMemory:
    def __init__(self) -> None: ...

class PackedLinear:
    @staticmethod
    def pack_matrix(
        threads: ThreadPool,
        weights: int,
        type: ElementType,
        out_features: int,
        in_features: int,
        format: WeightFormat,
        memory: WeightMemory | None,
    ) -> PackedLinear: ...
    @staticmethod
    def pack_gguf(
        threads: ThreadPool,
        blocks: int,
        out_features: int,
        in_features: int,
        format: WeightFormat,
        memory: WeightMemory | None,
    ) -> PackedLinear: ...
    def set_bias(self, bias: int) -> None: ...
    @property
    def num_bytes(self) -> int: ...
    def apply(self, threads: ThreadPool, rows: InputRows, out: int, type: ElementType, out_stride: int) -> None: ...
    def add_to(self, threads: ThreadPool, rows: InputRows, out: int, out_stride: int) -> None: ...
    def unpack(self, weights: int) -> None: ...

class InputRows:
    def __init__(self, linear: PackedLinear, max_rows: int) -> None: ...
    @property
    def num_rows(self) -> int: ...
    def fill(self, rows: int, type: ElementType, num_rows: int) -> None: ...

def level() -> str: ...
def guard_allocations(is_guarded: bool) -> None: ...

# What the machine reaches, and single parts of a model, for the programs that measure.

class MemoryBuffer:
    def __init__(self, num_bytes: int) -> None: ...
    def fill(self, word: int) -> None: ...
    def read(self, threads: ThreadPool) -> int: ...

class ProductKind(Enum):
    float32 = 0
    bfloat16 = 1
    int8 = 2

class LayerPart(Enum):
    query_key_value = 0
    output = 1
    gate_up = 2
    down = 3

class StackRows:
    def __init__(self, in_features: int, num_rows: int) -> None: ...
    def fill(self, rows: int) -> None: ...

def multiply_and_add(threads: ThreadPool, kind: ProductKind, num_rounds: int) -> float: ...
def layer_part(model: LlamaForward, layer: int, part: LayerPart) -> LinearStack: ...
def stack_bytes(stack: LinearStack) -> int: ...
def stack_reads_bfloat16(stack: LinearStack) -> bool: ...
def apply_stack(threads: ThreadPool, stack: LinearStack, rows: StackRows, out: int) -> None: ...

# Single kernels.

class AttentionGroup:
    def set_paths(
        self, path_slots: int, path_capacity: int, path_lens: int, path_strides: tuple[int, ...], /
    ) -> None: ...

class AttentionCall: ...

def rms_norm(rows: int, weight: int, epsilon: float, num_rows: int, width: int, out: int) -> None: ...
def rotate(heads: int, cosines: int, sines: int, num_rows: int, num_heads: int, half: int) -> None: ...
def silu_multiply(gate: int, up: int, size: int, out: int) -> None: ...
def exponentials(numbers: int, size: int, out: int) -> None: ...
def attention_group(
    num_reqs: int,
    num_queries: int,
    context: int,
    key_slots: int,
    visible_lens: int,
    visible_strides: tuple[int, ...],
    /,
) -> AttentionGroup: ...
def attention_call(num_heads: int, memory: ModelMemory) -> AttentionCall: ...
def quantize_rows(rows: int, num_rows: int, in_features: int, numbers: int, scales: int) -> None: ...
def quantize_heads(heads: int, num_heads: int, head_dim: int, numbers: int, scales: int) -> None: ...
def attention(
    threads: ThreadPool,
    call: AttentionCall,
    query: int,
    num_rows: int,
    groups: list[AttentionGroup],
    first_position: int,
    out: int,
) -> None: ...
def noise_bits(first_id: int, count: int, first_word: int, second_word: int, out: int) -> None: ...
def gumbel_noise(first_id: int, count: int, first_word: int, second_word: int, out: int) -> None: ...

# Logit rules, draws and the walk through the trees.

class RequestTable: ...

class SamplingRequests:
    def set_bias(self, bias: RequestTable) -> None: ...
    def set_min_tokens(self, stop_ids: RequestTable, min_tokens: int) -> None: ...
    def set_penalties(
        self,
        output_counts: RequestTable,
        prompt_seen: RequestTable,
        repetition: int,
        presence: int,
        frequency: int,
    ) -> None: ...
    def set_filters(self, temperatures: int, top_k: int, top_p: int, log_min_p: int) -> None: ...

class LogitRowArrays:
    def set_masks(self, masks: int, num_masks: int, mask_rows: int) -> None: ...

class TreeArrays: ...
class PathArrays: ...
class ChildArrays: ...

def request_table(rows: int, slots: int, num_slots: int) -> RequestTable: ...
def sampling_requests(
    num_requests: int, vocab_size: int, seeds: int, sample_indices: int, prompt_lengths: int
) -> SamplingRequests: ...
def logit_row_arrays(
    num_rows: int, row_to_request: int, positions: int, output_lengths: int, path_tokens: int, path_capacity: int
) -> LogitRowArrays: ...
def tree_arrays(
    num_requests: int, num_nodes: int, max_depth: int, node_rows: int, tokens: int, parents: int
) -> TreeArrays: ...
def path_arrays(nodes: int, num_accepted: int, bonus: int, token_ids: int, drawn: int) -> PathArrays: ...
def child_arrays(width: int, columns: int, log_confidence: int) -> ChildArrays: ...

class TokenDrawer:
    def __init__(self, threads: ThreadPool) -> None: ...
    def draw(self, requests: SamplingRequests, logits: int, rows: LogitRowArrays, ids: int) -> None: ...
    def accept(
        self, requests: SamplingRequests, logits: int, rows: LogitRowArrays, trees: TreeArrays, paths: PathArrays
    ) -> None: ...

def best_children(
    threads: ThreadPool,
    requests: SamplingRequests,
    draft_logits: int,
    rows: LogitRowArrays,
    column_ids: int,
    num_columns: int,
    children: ChildArrays,
) -> None: ...
def noise_key(seed: int, sample_index: int, position: int, stream: int) -> list[int]: ...

# Whole forwards.

class LinearStack:
    def __init__(self, parts: list[PackedLinear]) -> None: ...
    @property
    def in_features(self) -> int: ...
    @property
    def out_features(self) -> int: ...

class LayerShape: ...
class LayerWeights: ...
class EmbeddingTable: ...
class EagleWeights: ...
class RotaryTable: ...
class StepRows: ...

class RowBuilder:
    def __init__(self, block_size: int, first_position: int) -> None: ...
    def add_run(self, block_ids: Sequence[int], first_slot: int, token_ids: Sequence[int]) -> None: ...
    def add_tree(
        self,
        block_ids: Sequence[int],
        root_slot: int,
        first_scratch_slot: int,
        num_nodes: int,
        tokens: int,
        parents: int,
        depths: int,
    ) -> None: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def max_position(self) -> int: ...

class KVType(Enum):
    float32 = 0
    bfloat16 = 1
    int8 = 2

class ModelMemory:
    def __init__(self, type: KVType, num_slots: int, num_kv_heads: int, head_dim: int) -> None: ...
    def add_layer(self, keys: int, values: int, key_scales: int, value_scales: int) -> None: ...
    def move_rows(self, sources: Sequence[int], targets: Sequence[int]) -> None: ...
    @property
    def num_slots(self) -> int: ...

def layer_shape(
    num_heads: int, num_kv_heads: int, head_dim: int, hidden_size: int, intermediate_size: int, rms_norm_epsilon: float
) -> LayerShape: ...
def layer_weights(
    query_key_value: LinearStack,
    output: LinearStack,
    gate_up: LinearStack,
    down: LinearStack,
    input_norm: int,
    post_attention_norm: int,
) -> LayerWeights: ...
def plain_embedding(rows: int, is_bfloat16: bool, num_tokens: int, width: int) -> EmbeddingTable: ...
def packed_embedding(packed: PackedLinear) -> EmbeddingTable: ...
def eagle_weights(
    combine: LinearStack,
    feature_norms: list[int],
    layers: list[LayerWeights],
    hidden_norm: int,
    final_norm: int,
    norm_before_residual: bool,
) -> EagleWeights: ...
def rotary_table(cosines: int, sines: int, num_positions: int) -> RotaryTable: ...
def step_rows(
    num_rows: int,
    positions: int,
    slots: int,
    rotary: RotaryTable,
    memory: ModelMemory,
    groups: list[AttentionGroup],
    first_position: int,
) -> StepRows: ...

class LlamaForward:
    def __init__(
        self,
        threads: ThreadPool,
        shape: LayerShape,
        embedding: EmbeddingTable,
        layers: list[LayerWeights],
        final_norm: int,
        aux_layer_ids: list[int],
    ) -> None: ...
    def run(
        self,
        token_ids: int,
        step: StepRows,
        memory: ModelMemory,
        hidden_states: int,
        features: int,
        features_are_bfloat16: bool,
    ) -> None: ...
    def run_built(
        self,
        rows: RowBuilder,
        rotary: RotaryTable,
        memory: ModelMemory,
        hidden_states: int,
        features: int,
        features_are_bfloat16: bool,
    ) -> None: ...

class DraftForward:
    @property
    def feature_size(self) -> int: ...
    def combine_features(self, features: int, is_bfloat16: bool, num_rows: int, combined: int) -> None: ...
    def run(
        self,
        token_ids: int,
        hidden_states: int,
        step: StepRows,
        memory: ModelMemory,
        head_inputs: int,
        next_hidden_states: int,
    ) -> None: ...

class EagleForward(DraftForward):
    def __init__(
        self, threads: ThreadPool, shape: LayerShape, embedding: EmbeddingTable, weights: EagleWeights
    ) -> None: ...

class Eagle1Forward(DraftForward):
    def __init__(
        self,
        threads: ThreadPool,
        shape: LayerShape,
        embedding: EmbeddingTable,
        combine: LinearStack,
        layers: list[LayerWeights],
    ) -> None: ...

# Drafts that grow trees.

class StaticTree:
    def __init__(self, parents: list[int], ranks: list[int]) -> None: ...
    @property
    def num_nodes(self) -> int: ...
    @property
    def depth(self) -> int: ...

class DynamicShape: ...
class NodeArrays: ...

class GrownSizes:
    @property
    def row_counts(self) -> list[int]: ...
    @property
    def level_rows(self) -> list[int]: ...
    @property
    def survivals(self) -> list[list[float]]: ...

class SlotRegions:
    def __init__(self, num_blocks: int, block_size: int, max_num_seqs: int, scratch_per_row: int) -> None: ...

class DraftPlaces: ...

class DraftBatch:
    def add(
        self, block_ids: list[int], num_draft_rows: int, token_ids: list[int], row: int, max_depth: int, /
    ) -> None: ...
    def set_masks(self, ask: Callable[[int, list[int], list[int]], tuple[int, list[int]]]) -> None: ...
    @property
    def num_trees(self) -> int: ...
    @property
    def last_position(self) -> int: ...

def dynamic_shape(steps: int, topk: int, num_draft_tokens: int, least_survival: float) -> DynamicShape: ...
def node_arrays(tokens: int, parents: int, depths: int, is_valid: int) -> NodeArrays: ...
def draft_places(regions: SlotRegions, memory: ModelMemory, rotary: RotaryTable) -> DraftPlaces: ...
def draft_batch(features: int, is_bfloat16: bool, num_features: int, /) -> DraftBatch: ...

class DraftGrowth:
    def __init__(
        self,
        threads: ThreadPool,
        forward: DraftForward,
        head: PackedLinear,
        target_ids: int,
        feeds_head_inputs: bool,
    ) -> None: ...
    def run_static(
        self, places: DraftPlaces, batch: DraftBatch, sampling: SamplingRequests, tree: StaticTree, tokens: int, /
    ) -> None: ...
    def run_dynamic(
        self,
        places: DraftPlaces,
        batch: DraftBatch,
        sampling: SamplingRequests,
        shape: DynamicShape,
        out: NodeArrays,
        /,
    ) -> GrownSizes: ...

# Looking up continuations.

class RateRules: ...

def rate_rules(
    length_ends: Sequence[int],
    generic_rates: Sequence[float],
    weight_of_generic: float,
    weight_of_shared: float,
    most_trials: float,
) -> RateRules: ...

class LookupMemory:
    def __init__(self, greedy: RateRules, sampled: RateRules, history_tokens: int) -> None: ...
    def remember(self, token_ids: list[int]) -> None: ...
    @property
    def num_history_bytes(self) -> int: ...

class LookupReader:
    def __init__(self, memory: LookupMemory, is_sampled: bool, num_prompt_tokens: int, num_again: int) -> None: ...
    def read(self, token_ids: list[int]) -> None: ...
    @property
    def num_bytes(self) -> int: ...

class LookupWorth:
    def __init__(
        self,
        num_rows: int,
        expected_tokens: float,
        other_time: float,
        num_first_rows: int,
        tree_time: float,
        always_pays: bool,
        least_survival: float,
    ) -> None: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def expected_tokens(self) -> float: ...

class RowPrices(Protocol):
    def time(self, num_rows: int) -> float: ...
    def least_slope(self, num_rows: int) -> float: ...

def read_lookup_texts(readers: list[LookupReader], token_ids: list[list[int]], least_survival: float) -> bool: ...
def grow_lookup_trees(
    readers: list[LookupReader],
    token_ids: list[list[int]],
    depths: Sequence[int],
    max_draft_tokens: int,
    worth: LookupWorth,
    costs: RowPrices,
) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]] | None]: ...
