"""From steps that were timed to a profile of costs.

Every group of equal steps counts by its lower quartile, since what disturbs a step only ever makes it longer, and
curves are made to rise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import torch
from torch import Tensor

from aquiline.engine.cost_correction import ForwardTerms
from aquiline.engine.cost_curve import Curve
from aquiline.engine.cost_model import CostProfile, StepSeconds, StepSize
from aquiline.engine.plan import StepReport
from aquiline.errors import InvalidParameterError

LEAST_SECONDS = 1e-7
# Of a step with the least context that was timed, context takes no more than this.
MOST_CONTEXT_SHARE = 0.5
# What a further row over the same pages takes, as a share of what reading them for the first one does. Where steps were
# disturbed they say little of it, so they are weighed against this.
USUAL_ROW_SHARE = 0.2
USUAL_WEIGHT = 0.1
# Kernels compute rows in panels of so many.
PANEL_ROWS = 16
# Draft and sampling are straight lines of their rows; a curve is given these two points of the line.
LINE_ROWS = (1, 256)


def fit_costs(reports: Sequence[StepReport]) -> CostProfile:
    """The profile that explains the steps best.

    Raises:
        InvalidParameterError: there is no timed step of one row and of several.
    """
    timed = [(report.size, report.seconds) for report in reports if report.seconds is not None]
    groups = _grouped(timed)
    if len({size.num_rows for size in groups}) < 2:
        raise InvalidParameterError("costs need timed steps of at least two different sizes")
    verify, terms = _fit_verify(groups)
    draft = _fit_line(groups, lambda s: s.draft, _draft_terms, lambda size: bool(size.num_new_rows or size.level_rows))
    sample = _fit_line(groups, lambda s: s.sample, lambda size: [1.0, size.num_drawn_rows])
    host = _fit_line(groups, lambda s: s.host, lambda size: [1.0, size.num_requests, _has_tree(size)])
    return CostProfile(
        verify=verify,
        seconds_per_context_token=terms.per_context,
        seconds_per_row_context=terms.per_row_context,
        extend=_line(draft[0], draft[1]),
        propose_roots=_line(0.0, draft[2]),
        level=_line(draft[3], draft[4]),
        sample_base=sample[0],
        sample_per_row=sample[1],
        host_base=host[0],
        host_per_request=host[1],
        tree_verify=terms.any_tree,
        tree_host=host[2],
    )


def _grouped(timed: Sequence[tuple[StepSize, StepSeconds]]) -> dict[StepSize, StepSeconds]:
    """The lower quartile of each phase over steps of one size; contexts of one size are close together."""
    groups: dict[tuple[object, ...], list[tuple[StepSize, StepSeconds]]] = {}
    for size, seconds in timed:
        context = size.context // max(1, size.num_requests) // 64
        key = (size.num_rows, size.num_drawn_rows, size.num_requests, context, size.num_new_rows, size.level_rows)
        groups.setdefault(key, []).append((size, seconds))
    return {
        group[len(group) // 2][0]: StepSeconds(
            *(_lower_quartile([getattr(seconds, phase) for _, seconds in group]) for phase in StepSeconds.__slots__)
        )
        for group in groups.values()
    }


def _lower_quartile(values: list[float]) -> float:
    return sorted(values)[len(values) // 4]


def _has_tree(size: StepSize) -> bool:
    return size.num_drawn_rows > size.num_requests


def _fit_verify(groups: dict[StepSize, StepSeconds]) -> tuple[Curve, ForwardTerms]:
    """A height for each row count, and what contexts and trees add.

    Of the steps with equal rows, that with the least context stands for the height; what the others take longer or
    shorter is due to context, or to one of the two holding trees. So noise cannot trade one for the other.

    Worked example, both of 4 rows: a tree of one request with 100 tokens takes 1.2, four requests of 100 tokens without
    trees 1.3. With .001 per token of context, three hundred more take .3, so the tree takes .2.
    """
    lowest: dict[int, StepSize] = {}
    for size in groups:
        if size.num_rows not in lowest or size.row_context < lowest[size.num_rows].row_context:
            lowest[size.num_rows] = size
    differences, longer = [], []
    for size, seconds in groups.items():
        base = lowest[size.num_rows]
        if size is not base:
            differences.append([now - then for now, then in zip(_terms_of(size), _terms_of(base), strict=True)])
            longer.append(seconds.verify - groups[base].verify)
    weight = USUAL_WEIGHT * sum(row_context**2 for _, row_context, _ in differences) ** 0.5
    differences.append([-USUAL_ROW_SHARE * weight, weight, 0.0])
    longer.append(0.0)
    # What nowhere differs cannot be told from the height.
    factors = _nonnegative(torch.tensor(differences, dtype=torch.float64), torch.tensor(longer, dtype=torch.float64))
    row_counts = sorted(lowest)
    heights = []
    for rows in row_counts:
        size = lowest[rows]
        whole = groups[size].verify
        added = sum(factor * term for factor, term in zip(factors, _terms_of(size), strict=True))
        heights.append(max(LEAST_SECONDS, whole - min(added, MOST_CONTEXT_SHARE * whole)))
    curve = Curve(tuple(row_counts), tuple(_rising(_smoothed(row_counts, _rising(heights)))))
    return curve, ForwardTerms(*factors)


def _terms_of(size: StepSize) -> list[float]:
    """What the factors of `ForwardTerms` are multiplied by."""
    return [float(size.context), float(size.row_context), float(_has_tree(size))]


def _smoothed(rows: Sequence[int], values: Sequence[float]) -> list[float]:
    """Every value drawn halfway to the straight line between its neighbours, within panels of rows.

    Equal rows come in trees of several shapes, which differ a little, and no step is timed without noise; but between
    two panels there is a stair. Worked example, 4, 6 and 8 rows that take 1, 2 and 2: the line has 1.5 at 6 rows, so
    1.75 is taken.
    """
    found = list(values)
    for place in range(1, len(rows) - 1):
        low, middle, high = rows[place - 1 : place + 2]
        if (low - 1) // PANEL_ROWS == (high - 1) // PANEL_ROWS:
            share = (middle - low) / (high - low)
            line = values[place - 1] + share * (values[place + 1] - values[place - 1])
            found[place] = (values[place] + line) / 2.0
    return found


def _rising(values: Sequence[float]) -> list[float]:
    """The nearest values that never fall: neighbours that do are pooled to their mean.

    Worked example: 1, 3, 2, 4 becomes 1, 2.5, 2.5, 4; so a single high value does not lift all that follow.
    """
    pools: list[list[float]] = []
    for value in values:
        pools.append([value])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    return [fmean(pool) for pool in pools for _ in pool]


def _nonnegative(matrix: Tensor, values: Tensor) -> list[float]:
    """Factors of the columns, none below 0, whose products with the rows come nearest to the values.

    A column of zeros says nothing of its factor, which is 0 then.
    """
    used = [column for column in range(matrix.shape[1]) if bool(matrix[:, column].any())]
    found = [0.0] * matrix.shape[1]
    while used:
        factors = _solve(matrix[:, used], values)
        worst = int(factors.argmin())
        if float(factors[worst]) >= 0.0:
            for column, factor in zip(used, factors.tolist(), strict=True):
                found[column] = factor
            break
        del used[worst]
    return found


def _draft_terms(size: StepSize) -> list[float]:
    deep = size.level_rows[1:]
    roots = size.level_rows[0] if size.level_rows else 0
    return [1.0, size.num_new_rows, roots, len(deep), sum(deep)]


def _fit_line(
    groups: dict[StepSize, StepSeconds],
    phase: Callable[[StepSeconds], float],
    terms: Callable[[StepSize], list[float]],
    counts: Callable[[StepSize], bool] = lambda size: True,
) -> list[float]:
    chosen = [(size, seconds) for size, seconds in groups.items() if counts(size)]
    if not chosen:
        return [0.0] * len(terms(next(iter(groups))))
    return _least_squares([terms(size) for size, _ in chosen], [phase(seconds) for _, seconds in chosen])


def _least_squares(terms: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Factors, none below 0, whose products with the terms come nearest to the seconds, by relative error."""
    matrix = torch.tensor(terms, dtype=torch.float64)
    values = torch.tensor(seconds, dtype=torch.float64).clamp_min(LEAST_SECONDS)
    return _nonnegative(matrix / values.unsqueeze(1), torch.ones_like(values))


def _solve(matrix: Tensor, values: Tensor) -> Tensor:
    # A pinch of damping keeps columns apart that the steps cannot tell apart; scaling makes it the same for all.
    scale = matrix.norm(dim=0).clamp_min(1e-30)
    scaled = matrix / scale
    normal = scaled.T @ scaled + 1e-6 * torch.eye(scaled.shape[1], dtype=torch.float64)
    solution: Tensor = torch.linalg.solve(normal, scaled.T @ values)
    factors: Tensor = solution / scale
    return factors


def _line(base: float, per_row: float) -> Curve:
    return Curve(LINE_ROWS, tuple(base + per_row * rows for rows in LINE_ROWS))
