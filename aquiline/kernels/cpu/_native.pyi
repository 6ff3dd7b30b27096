from collections.abc import Sequence
from enum import Enum

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

class PackedLinear:
    @staticmethod
    def pack_matrix(
        weights: int, type: ElementType, out_features: int, in_features: int, format: WeightFormat
    ) -> PackedLinear: ...
    @staticmethod
    def pack_gguf(blocks: int, out_features: int, in_features: int, format: WeightFormat) -> PackedLinear: ...
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
def attention_call(
    num_heads: int, num_kv_heads: int, head_dim: int, keys: int, values: int, is_bfloat16: bool, num_slots: int
) -> AttentionCall: ...
def attention(
    threads: ThreadPool,
    call: AttentionCall,
    query: int,
    num_rows: int,
    groups: list[AttentionGroup],
    first_position: int,
    out: int,
) -> None: ...
def draw_tokens(
    threads: ThreadPool, scores: int, num_rows: int, num_columns: int, keys: int, is_greedy: int, ids: int
) -> None: ...
def noise_bits(first_id: int, count: int, first_word: int, second_word: int, out: int) -> None: ...
def gumbel_noise(first_id: int, count: int, first_word: int, second_word: int, out: int) -> None: ...

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

class ModelMemory:
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
def model_memory(layers: list[tuple[int, int]], is_bfloat16: bool, num_slots: int) -> ModelMemory: ...
def move_rows(memory: ModelMemory, numbers_per_row: int, sources: Sequence[int], targets: Sequence[int]) -> None: ...
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
