"""From the target's logits to a drawn token: every sampling parameter, in one order, for every path.

    grammar  ->  allowed ids, banned ids and bias  ->  min_tokens  ->  repetition penalty
        ->  presence and frequency penalty  ->  temperature  ->  top-k  ->  top-p  ->  min-p
        ->  argmax of log-weight + Gumbel noise

A row's result depends on that row alone, bit for bit: whatever is summed is summed in integers, whose sum does not
depend on the order, and everything else works element by element.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aquiline.kernels.reference.noise import gumbel

LARGEST_FINITE = torch.finfo(torch.float32).max
WEIGHT_SCALE = 2.0**40


@dataclass(frozen=True)
class DenseRows:
    """Rows as wide as the vocabulary, stored only for the requests that need one.

    Attributes:
        table: [num_slots, vocab]; slot 0 has no effect.
        slots: [num_reqs] int64, 0 for a request without a row.
    """

    table: Tensor
    slots: Tensor

    def take(self, row_to_request: Tensor, token_ids: Tensor | None) -> Tensor:
        """A copy of the row of every logits row, for the columns `token_ids` (None: all)."""
        rows = self.table.index_select(0, self.slots[row_to_request])  # [num_rows, vocab]
        return rows if token_ids is None else rows.index_select(1, token_ids)  # [num_rows, num_columns]


@dataclass(frozen=True)
class MinTokens:
    """Ids that may not be drawn before a number of output tokens.

    Attributes:
        stop_ids: bool table, true for the ids that would end the output.
        min_tokens: [num_reqs] int64
    """

    stop_ids: DenseRows
    min_tokens: Tensor


@dataclass(frozen=True)
class Penalties:
    """What the penalties count, and how strong they are.

    Attributes:
        output_counts: float32 table, occurrences in the output so far.
        prompt_seen: bool table, true for the ids of the prompt.
        repetition, presence, frequency: [num_reqs] float32; 1, 0 and 0 have no effect.
    """

    output_counts: DenseRows
    prompt_seen: DenseRows
    repetition: Tensor
    presence: Tensor
    frequency: Tensor


@dataclass(frozen=True)
class LogitRules:
    """The sampling parameters of a step's requests. None: no request of the step needs that rule, so it does not run.

    Attributes:
        bias: float32 table added to the logits; -inf bans.
        min_tokens, penalties: see there.
        temperatures: [num_reqs] float32, 0 is greedy; None: every request is greedy.
        top_k: [num_reqs] int64, at least 1; the vocabulary size keeps all.
        top_p: [num_reqs] float64 in (0, 1]; 1 keeps all.
        log_min_p: [num_reqs] float32, logarithm of min_p; -inf keeps all.
    """

    bias: DenseRows | None = None
    min_tokens: MinTokens | None = None
    penalties: Penalties | None = None
    temperatures: Tensor | None = None
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    log_min_p: Tensor | None = None


@dataclass(frozen=True)
class TokenMasks:
    """Which tokens a grammar allows at each row.

    Worked example, vocabulary 40, ids 0, 33 and 39 allowed: the words are 1 and 2**1 + 2**7.

    Attributes:
        bits: [num_masks, ceil(vocab / 32)] int32; id v is allowed where bit v % 32 of word v // 32 is set.
        rows: [num_rows] int64, the mask of every logits row; -1: nothing is forbidden there.
    """

    bits: Tensor
    rows: Tensor

    def allowed(self, num_columns: int, token_ids: Tensor | None) -> Tensor:
        """Whether each row allows the tokens `token_ids` (None: ids 0 to num_columns - 1): [num_rows, num_columns]."""
        if token_ids is None:
            token_ids = torch.arange(num_columns, device=self.bits.device)
        words = self.bits[self.rows.clamp(min=0)][:, token_ids // 32]  # [num_rows, num_columns]
        return ((words >> (token_ids % 32).to(torch.int32)) & 1).bool() | (self.rows < 0).unsqueeze(1)


@dataclass(frozen=True)
class RowPlaces:
    """Which request every logits row belongs to, and where in it.

    Attributes:
        row_to_request: [num_rows] int64
        output_lengths: [num_rows] int64, output tokens before the token that this row draws.
        path_tokens: [num_rows, max_depth] int64 padded with -1: draft tokens from below the root down to the row's
            own node. The root is not among them: it is committed, so the request's own counts hold it. None: no row
            has any.
        token_ids: [num_columns] int64, target id of every logits column; None: column i is id i.
        masks: what grammars allow; None: no row has one.
    """

    row_to_request: Tensor
    output_lengths: Tensor
    path_tokens: Tensor | None = None
    token_ids: Tensor | None = None
    masks: TokenMasks | None = None


def process_logits(logits: Tensor, rules: LogitRules, places: RowPlaces) -> Tensor:
    """Apply every rule.

    Args:
        logits: [num_rows, num_columns] float32, raw; not modified.

    Returns:
        [num_rows, num_columns] float32. Rows with a temperature: log-weights, the largest of them 0, -inf where a token
        is ruled out; their softmax is the distribution to draw from. Greedy rows: logits, to take the argmax of.
    """
    adjusted = adjust_logits(logits, rules, places)  # [num_rows, num_columns]
    if rules.temperatures is None:
        return adjusted
    temperatures = rules.temperatures[places.row_to_request].unsqueeze(1)  # [num_rows, 1]
    log_weights = _filter(_log_weights(adjusted, temperatures), rules, places.row_to_request)
    return torch.where(temperatures > 0, log_weights, adjusted)


def scale_logits(adjusted: Tensor, rules: LogitRules, row_to_request: Tensor) -> Tensor:
    """`adjust_logits`' result after temperature only, as `process_logits` returns it without top-k, top-p and min-p."""
    if rules.temperatures is None:
        return adjusted
    temperatures = rules.temperatures[row_to_request].unsqueeze(1)  # [num_rows, 1]
    return torch.where(temperatures > 0, _log_weights(adjusted, temperatures), adjusted)


def adjust_logits(logits: Tensor, rules: LogitRules, places: RowPlaces) -> Tensor:
    """Grammar, bias and bans, min_tokens, and penalties: what also holds for greedy rows.

    A ban that would leave a row without any token is not applied to that row: min_tokens, when only stop ids are
    allowed, or a grammar, when the draft's vocabulary has none of the tokens that may come next.

    Returns:
        [num_rows, num_columns] float32; `logits` itself when there is nothing to do.
    """
    if places.masks is not None:
        allowed = places.masks.allowed(logits.shape[1], places.token_ids)  # [num_rows, num_columns]
        logits = _unless_empty(logits.masked_fill(~allowed, -torch.inf), logits)
    if rules.bias is not None:
        biased = logits + rules.bias.take(places.row_to_request, places.token_ids)  # [num_rows, num_columns]
        logits = _unless_empty(biased, logits)
    if rules.min_tokens is not None:
        is_stop = rules.min_tokens.stop_ids.take(places.row_to_request, places.token_ids)  # [num_rows, num_columns]
        is_early = places.output_lengths < rules.min_tokens.min_tokens[places.row_to_request]  # [num_rows]
        logits = _unless_empty(logits.masked_fill(is_stop & is_early.unsqueeze(1), -torch.inf), logits)
    if rules.penalties is not None:
        logits = _penalise(logits, rules.penalties, places)
    return logits


def draw_tokens(processed: Tensor, temperatures: Tensor | None, keys: Tensor) -> Tensor:
    """Draw one token per row: the argmax of log-weight plus keyed noise; without noise where the temperature is 0.

    Ties go to the lowest id.

    Args:
        processed: [num_rows, vocab] float32 from `process_logits`.
        temperatures: [num_rows] float32; None: every row is greedy.
        keys: [num_rows, 2] int64 from `mix_key`.

    Returns:
        [num_rows] int64.
    """
    if temperatures is None:
        return processed.argmax(dim=-1)
    token_ids = torch.arange(processed.shape[1], device=processed.device)
    noisy = processed + gumbel(keys, token_ids)  # [num_rows, vocab]
    return torch.where(temperatures.unsqueeze(1) > 0, noisy, processed).argmax(dim=-1)


@dataclass(frozen=True)
class TokenLogProbs:
    """Log-probabilities from raw logits.

    Attributes:
        log_probs: [num_rows] float32, of the given token.
        ranks: [num_rows] int64, 1 + number of tokens that are strictly more likely.
        top_ids: [num_rows, num_top] int64, most likely first, ties to the lowest id.
        top_log_probs: [num_rows, num_top] float32
    """

    log_probs: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_log_probs: Tensor


def log_probs_of(logits: Tensor, token_ids: Tensor, num_top: int) -> TokenLogProbs:
    """Log-probability and rank of one token per row, and the most likely tokens.

    Args:
        logits: [num_rows, vocab] float32, raw: no sampling parameter changes what is reported.
        token_ids: [num_rows] int64.
        num_top: how many of the most likely tokens; may be 0. A smaller vocabulary is reported as a whole.
    """
    log_probs = torch.log_softmax(logits, dim=-1)  # [num_rows, vocab]
    chosen = token_ids.unsqueeze(1)  # [num_rows, 1]
    ranks = 1 + (logits > logits.gather(1, chosen)).sum(dim=-1)  # [num_rows]
    top_ids = largest(logits, min(num_top, logits.shape[1]))  # [num_rows, num_top]
    return TokenLogProbs(log_probs.gather(1, chosen).squeeze(1), ranks, top_ids, log_probs.gather(1, top_ids))


def largest(scores: Tensor, count: int) -> Tensor:
    """Columns of the `count` largest scores of every row, largest first, ties to the lowest column.

    A longer result always begins with a shorter one.

    Args:
        scores: [num_rows, num_columns] float32.
        count: at most num_columns.

    Returns:
        [num_rows, count] int64.
    """
    # Adding 0 turns -0.0 into 0.0, so that the two tie.
    bits = (scores + 0.0).view(torch.int32).to(torch.int64)  # [num_rows, num_columns]
    # Negative floats grow as their magnitude bits shrink; flipping those bits makes integer order equal float order.
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    columns = torch.arange(scores.shape[1], device=scores.device)
    unique = (ordered << 32) | (0xFFFFFFFF - columns)  # [num_rows, num_columns]
    return unique.topk(count, dim=-1).indices


def _log_weights(adjusted: Tensor, temperatures: Tensor) -> Tensor:
    """Logits minus their largest, divided by the temperature (1 in the place of 0, whose rows are not used)."""
    divisors = torch.where(temperatures > 0, temperatures, 1.0)  # [num_rows, 1]
    return (adjusted - adjusted.amax(dim=-1, keepdim=True)) / divisors


def _unless_empty(banned: Tensor, before: Tensor) -> Tensor:
    has_any = (banned > -torch.inf).any(dim=-1, keepdim=True)  # [num_rows, 1]
    return torch.where(has_any, banned, before)


def _penalise(logits: Tensor, penalties: Penalties, places: RowPlaces) -> Tensor:
    row_to_request = places.row_to_request
    counts = _path_counts(penalties.output_counts, places)  # [num_rows, num_columns]
    in_output = counts > 0
    seen = in_output | penalties.prompt_seen.take(row_to_request, places.token_ids)
    repetition = penalties.repetition[row_to_request].unsqueeze(1)  # [num_rows, 1]
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    penalised = torch.where(seen, repeated, logits)
    penalised = penalised - penalties.presence[row_to_request].unsqueeze(1) * in_output
    penalised = penalised - penalties.frequency[row_to_request].unsqueeze(1) * counts
    # A penalty may leave the range of float32, but it neither bans a token nor lifts a ban.
    penalised = penalised.clamp(-LARGEST_FINITE, LARGEST_FINITE)
    return torch.where(logits == -torch.inf, logits, penalised)


def _path_counts(output_counts: DenseRows, places: RowPlaces) -> Tensor:
    """Occurrences of every column's token in the output and on the row's own path, [num_rows, num_columns]."""
    rows = output_counts.table.index_select(0, output_counts.slots[places.row_to_request])  # [num_rows, vocab]
    if places.path_tokens is not None:
        ones = (places.path_tokens >= 0).to(rows.dtype)  # [num_rows, max_depth]
        rows.scatter_add_(1, places.path_tokens.clamp(min=0), ones)
    return rows if places.token_ids is None else rows.index_select(1, places.token_ids)


def _filter(log_weights: Tensor, rules: LogitRules, row_to_request: Tensor) -> Tensor:
    """Top-k, then top-p of what is left, then min-p. The most likely token always stays."""
    keep = None
    if rules.top_k is not None or rules.top_p is not None:
        keep = _keep_most_likely(log_weights, rules, row_to_request)
    if rules.log_min_p is not None:
        likely = log_weights >= rules.log_min_p[row_to_request].unsqueeze(1)  # [num_rows, vocab]
        keep = likely if keep is None else keep & likely
    return log_weights if keep is None else log_weights.masked_fill(~keep, -torch.inf)


def _keep_most_likely(log_weights: Tensor, rules: LogitRules, row_to_request: Tensor) -> Tensor:
    """Which tokens top-k and top-p keep; among equally likely tokens at the border the lowest ids stay.

    Top-p keeps a token while the more likely ones together stay below `top_p` of the mass that top-k left.
    Worked example, weights 5 3 1 1 and top_p 0.8: the sums before each token are 0 5 8 9 of 10, so two stay.
    """
    ordered, columns = log_weights.sort(dim=-1, descending=True, stable=True)  # both [num_rows, vocab]
    kept = torch.ones_like(ordered, dtype=torch.bool)
    if rules.top_k is not None:
        ranks = torch.arange(ordered.shape[1], device=ordered.device)
        kept = ranks < rules.top_k[row_to_request].unsqueeze(1)  # [num_rows, vocab]
    if rules.top_p is not None:
        top_p = rules.top_p[row_to_request].unsqueeze(1)  # [num_rows, 1]
        weights = (ordered.exp() * WEIGHT_SCALE).to(torch.int64).masked_fill(~kept, 0)  # [num_rows, vocab]
        sums = weights.cumsum(dim=-1)
        kept = kept & (((sums - weights) < top_p * sums[:, -1:]) | (top_p >= 1))
    return torch.zeros_like(kept).scatter(1, columns, kept)
