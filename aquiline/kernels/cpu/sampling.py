"""A step's tokens and paths under the keyed rule, natively; see `aquiline.kernels.sampling_kernels`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from aquiline.errors import InvalidParameterError
from aquiline.kernels.cpu.extension import native
from aquiline.kernels.cpu.forward import check_tensor
from aquiline.kernels.cpu.packed import Threads
from aquiline.kernels.reference.sampling import DenseRows, LogitRules, TokenMasks
from aquiline.kernels.sampling_kernels import DrawnPaths, LogitRows, SamplingRequests, TreeNodes

if TYPE_CHECKING:
    from aquiline.kernels.cpu import _native

INT32 = (torch.int32,)
INT64 = (torch.int64,)
FLOAT32 = (torch.float32,)
FLOAT64 = (torch.float64,)
BOOL = (torch.bool,)


class PreparedRequests:
    """The sampling parameters of some requests for the extension module; keeps their tensors alive.

    Raises:
        InvalidParameterError: a tensor of another type, shape, device or layout.
        IndexError: a slot that a table does not have.
    """

    def __init__(self, requests: SamplingRequests, vocab_size: int) -> None:
        self.requests = requests
        self.vocab_size = vocab_size
        self._kept: list[Tensor] = []
        self._num_reqs = requests.seeds.shape[0] if requests.seeds.dim() else 0
        self.handle: _native.SamplingRequests = native().sampling_requests(
            self._num_reqs,
            vocab_size,
            self._address(requests.seeds, "seeds", INT64),
            self._address(requests.sample_indices, "sample_indices", INT64),
            self._address(requests.prompt_lengths, "prompt_lengths", INT64),
        )
        self._set_rules(requests.rules)

    def _set_rules(self, rules: LogitRules) -> None:
        if rules.bias is not None:
            self.handle.set_bias(self._table(rules.bias, "bias", FLOAT32))
        if rules.min_tokens is not None:
            stop_ids = self._table(rules.min_tokens.stop_ids, "stop_ids", BOOL)
            self.handle.set_min_tokens(stop_ids, self._address(rules.min_tokens.min_tokens, "min_tokens", INT64))
        if rules.penalties is not None:
            penalties = rules.penalties
            self.handle.set_penalties(
                self._table(penalties.output_counts, "output_counts", FLOAT32),
                self._table(penalties.prompt_seen, "prompt_seen", BOOL),
                self._address(penalties.repetition, "repetition", FLOAT32),
                self._address(penalties.presence, "presence", FLOAT32),
                self._address(penalties.frequency, "frequency", FLOAT32),
            )
        if rules.temperatures is not None:
            self.handle.set_filters(
                self._address(rules.temperatures, "temperatures", FLOAT32),
                0 if rules.top_k is None else self._address(rules.top_k, "top_k", INT64),
                0 if rules.top_p is None else self._address(rules.top_p, "top_p", FLOAT64),
                0 if rules.log_min_p is None else self._address(rules.log_min_p, "log_min_p", FLOAT32),
            )

    def _address(self, tensor: Tensor, name: str, dtypes: tuple[torch.dtype, ...]) -> int:
        contiguous = tensor.contiguous()
        check_tensor(contiguous, name, dtypes, (self._num_reqs,))
        self._kept.append(contiguous)
        return contiguous.data_ptr()

    def _table(self, rows: DenseRows, name: str, dtypes: tuple[torch.dtype, ...]) -> _native.RequestTable:
        check_tensor(rows.table, name, dtypes, (None, self.vocab_size))
        self._kept.append(rows.table)
        table: _native.RequestTable = native().request_table(
            rows.table.data_ptr(), self._address(rows.slots, f"{name} slots", INT64), rows.table.shape[0]
        )
        return table


class NativeSampling:
    """`SamplingKernels` on a CPU.

    The requests of the last step stay prepared: a step with the same `SamplingRequests` object prepares nothing. What
    changes inside its tensors, as penalty counts do, is seen.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._drawer: _native.TokenDrawer = native().TokenDrawer(threads.handle)
        self._prepared: PreparedRequests | None = None

    def prepared(self, requests: SamplingRequests, vocab_size: int) -> PreparedRequests:
        """The requests as the extension module takes them."""
        kept = self._prepared
        if kept is None or kept.requests is not requests or kept.vocab_size != vocab_size:
            kept = self._prepared = PreparedRequests(requests, vocab_size)
        return kept

    def draw(self, requests: SamplingRequests, rows: LogitRows) -> Tensor:
        """The token that every row draws, [num_rows] int64.

        Raises:
            InvalidParameterError: a tensor of another type, shape, device or layout, or no vocabulary.
            IndexError: a request, path token or slot that does not exist.
        """
        arrays = _RowArrays(rows)
        ids = torch.empty(arrays.num_rows, dtype=torch.int64)
        handle = self.prepared(requests, arrays.vocab_size).handle
        self._drawer.draw(handle, rows.logits.data_ptr(), arrays.handle, ids.data_ptr())
        return ids

    def accept(self, requests: SamplingRequests, rows: LogitRows, tree: TreeNodes | None) -> DrawnPaths:
        """Draw a token at every node, then follow each tree from its root as far as it agrees.

        Raises:
            InvalidParameterError, IndexError: as for `draw`, and nodes that do not fit the requests.
        """
        arrays = _RowArrays(rows)
        num_reqs, max_depth = requests.num_reqs, 0 if tree is None else tree.max_depth
        node_rows = rows.node_rows.contiguous()
        check_tensor(node_rows, "node_rows", INT64, (num_reqs, None))
        num_nodes = node_rows.shape[1]
        if not num_nodes or max_depth < 0:
            raise InvalidParameterError(f"a tree has {num_nodes} nodes and depth {max_depth}; it has at least its root")
        tokens = parents = None
        if tree is not None:
            tokens, parents = tree.tokens.contiguous(), tree.parents.contiguous()
            check_tensor(tokens, "tokens", INT64, (num_reqs, num_nodes))
            check_tensor(parents, "parents", INT64, (num_reqs, num_nodes))
        paths = DrawnPaths(
            nodes=torch.empty((num_reqs, max_depth), dtype=torch.int64),
            num_accepted=torch.empty(num_reqs, dtype=torch.int64),
            bonus=torch.empty(num_reqs, dtype=torch.int64),
            token_ids=torch.empty((num_reqs, max_depth + 1), dtype=torch.int64),
            drawn=torch.empty((num_reqs, num_nodes), dtype=torch.int64),
        )
        module = native()
        self._drawer.accept(
            self.prepared(requests, arrays.vocab_size).handle,
            rows.logits.data_ptr(),
            arrays.handle,
            module.tree_arrays(
                num_reqs,
                num_nodes,
                max_depth,
                node_rows.data_ptr(),
                0 if tokens is None else tokens.data_ptr(),
                0 if parents is None else parents.data_ptr(),
            ),
            module.path_arrays(
                paths.nodes.data_ptr(),
                paths.num_accepted.data_ptr(),
                paths.bonus.data_ptr(),
                paths.token_ids.data_ptr(),
                paths.drawn.data_ptr(),
            ),
        )
        return paths


class _RowArrays:
    """The rows of a step for the extension module; keeps the tensors alive.

    Args:
        mask_vocab_size: tokens that a mask speaks of, which are the target's; None: as many as there are columns.
    """

    def __init__(self, rows: LogitRows, mask_vocab_size: int | None = None) -> None:
        check_tensor(rows.logits, "logits", FLOAT32, (None, None))
        self.num_rows, self.vocab_size = rows.logits.shape
        if not self.vocab_size:
            raise InvalidParameterError("there are no tokens to draw from")
        self._kept: list[Tensor] = []
        path_capacity = 0 if rows.path_tokens is None else rows.path_tokens.shape[-1]
        self.handle: _native.LogitRowArrays = native().logit_row_arrays(
            self.num_rows,
            self._address(rows.row_to_request, "row_to_request", (self.num_rows,)),
            self._address(rows.positions, "positions", (self.num_rows,)),
            self._address(rows.output_lengths, "output_lengths", (self.num_rows,)),
            0
            if rows.path_tokens is None
            else self._address(rows.path_tokens, "path_tokens", (self.num_rows, path_capacity)),
            path_capacity,
        )
        if rows.masks is not None:
            self._set_masks(rows.masks, mask_vocab_size or self.vocab_size)

    def _set_masks(self, masks: TokenMasks, vocab_size: int) -> None:
        check_tensor(masks.bits, "mask bits", INT32, (None, -(-vocab_size // 32)))
        self._kept.append(masks.bits)
        mask_rows = self._address(masks.rows, "mask rows", (self.num_rows,))
        self.handle.set_masks(masks.bits.data_ptr(), masks.bits.shape[0], mask_rows)

    def _address(self, tensor: Tensor, name: str, shape: tuple[int, ...]) -> int:
        contiguous = tensor.contiguous()
        check_tensor(contiguous, name, INT64, shape)
        self._kept.append(contiguous)
        return contiguous.data_ptr()


@dataclass(frozen=True)
class BestChildren:
    """The best children of some draft nodes.

    Attributes:
        columns: [num_rows, width] int64, best first, ties to the lowest.
        log_confidence: [num_rows, width] float32, log-softmax of the scores at those columns.
    """

    columns: Tensor
    log_confidence: Tensor


def best_children(
    prepared: PreparedRequests, rows: LogitRows, column_ids: Tensor | None, width: int, threads: Threads
) -> BestChildren:
    """The draft's columns that the keyed rule puts first, with the noise that the target will draw with.

    Args:
        rows: of the draft's logits, [num_rows, draft_vocab]; positions are those of the children.
        column_ids: [draft_vocab] int64, target id of each column; None: column i is id i.

    Raises:
        InvalidParameterError: a tensor that does not fit, a column without a target id, or more children than columns.
        IndexError: a request or path token that does not exist.
    """
    arrays = _RowArrays(rows, prepared.vocab_size)
    num_columns, vocab_size = arrays.vocab_size, prepared.vocab_size
    if column_ids is not None:
        check_tensor(column_ids, "column_ids", INT64, (num_columns,))
        if bool(((column_ids < 0) | (column_ids >= vocab_size)).any()):
            raise InvalidParameterError(f"column_ids holds ids that are none; they are 0 to {vocab_size - 1}")
    elif num_columns != vocab_size:
        raise InvalidParameterError(f"the draft has {num_columns} tokens, the target {vocab_size}; give column_ids")
    if not 1 <= width <= num_columns:
        raise InvalidParameterError(f"width is {width}; it must be 1 to {num_columns}")
    best = BestChildren(torch.empty((arrays.num_rows, width), dtype=torch.int64), torch.empty((arrays.num_rows, width)))
    module = native()
    module.best_children(
        threads.handle,
        prepared.handle,
        rows.logits.data_ptr(),
        arrays.handle,
        0 if column_ids is None else column_ids.data_ptr(),
        num_columns,
        module.child_arrays(width, best.columns.data_ptr(), best.log_confidence.data_ptr()),
    )
    return best
