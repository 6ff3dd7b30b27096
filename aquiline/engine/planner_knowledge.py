"""What the planner knows of the draft, kept in the form in which steps ask for it, and made anew only when it moves."""

from __future__ import annotations

from collections.abc import Callable

from aquiline.engine.acceptance import AcceptanceEstimator
from aquiline.engine.acceptance_prior import RequestClass
from aquiline.engine.cut_candidates import CutTable
from aquiline.engine.cut_tally import CutFigures
from aquiline.engine.forecast import Choices
from aquiline.engine.planner_candidates import CandidateTable
from aquiline.engine.tree_families import Rates, TreeBounds, TreeFamilies

# Rates are read anew after so many accepted paths, and after so many steps where many paths come with each.
FIRST_REFRESH = 4
FIRST_REFRESH_OF_CUTS = 12
LONGEST_REFRESH = 256
STEPS_BETWEEN_REFRESHES = 16
# Steps with few trees say little each, but after so many that teach, what they said shall count.
MOST_STEPS_BETWEEN_REFRESHES = 32
# Candidates are made anew when a rate has moved by more than this, and grown anew when it has by more than that.
NOTED_CHANGE = 0.03
GROWING_CHANGE = 0.12
# Rates below this may move as they like, and all by this much more.
LEAST_RATE = 0.02
LEAST_CHANGE = 0.003
# Dearness of guided nodes is taken in steps of this size.
DEARNESS_STEP = 0.25
MOST_DEARNESS = 4.0


class DraftKnowledge:
    """Candidates for every leading class, up to date with what the estimator has learnt.

    Attributes:
        version: changes whenever candidates do.
        num_refreshes, num_grown: how often rates were read, and shapes grown.
    """

    def __init__(self, estimator: AcceptanceEstimator, bounds: TreeBounds) -> None:
        self.estimator = estimator
        self.version = 0
        self.num_refreshes = 0
        self.num_grown = 0
        self._bounds = bounds
        self._first_refresh = FIRST_REFRESH_OF_CUTS if bounds.reads_confidence else FIRST_REFRESH
        self._families: dict[RequestClass, TreeFamilies] = {}
        self._grown_rates: dict[RequestClass, list[list[float]]] = {}
        self._known_rates: dict[RequestClass, list[list[float]]] = {}
        self._known_figures: dict[RequestClass, tuple[CutFigures, ...]] = {}
        self._tables: dict[RequestClass, Choices] = {}
        self._dearness = 1.0
        self._refresh_at = self._steps_since = self._num_changes = 0

    def table(self, leading: RequestClass) -> Choices:
        """Candidates for steps that are led by a class."""
        table = self._tables.get(leading)
        if table is None:
            table = self._tables[leading] = self._new_table(leading)
        return table

    def families(self, leading: RequestClass) -> TreeFamilies:
        """Trees grown for a class."""
        rates = self._rates(leading)
        families = self._families.get(leading)
        if families is None or _have_moved(rates, self._grown_rates[leading], GROWING_CHANGE):
            families = self._families[leading] = TreeFamilies.grown(rates, self._bounds)
            self._grown_rates[leading] = rates
            self.num_grown += 1
        return families

    def _rates(self, request_class: RequestClass) -> list[list[float]]:
        rates = self._known_rates.get(request_class)
        if rates is None:
            # Another engine may have learnt of the class since the rates were last read.
            self.estimator.tables[request_class].refresh()
            rates = self._known_rates[request_class] = self.estimator.tables[request_class].rates
        return rates

    def _new_table(self, leading: RequestClass) -> Choices:
        self.meet(leading)
        if self._bounds.reads_confidence:
            figures = [self._known_figures.get(each) for each in RequestClass]
            return CutTable.of(figures, [tally.hit_rate for tally in self.estimator.cut], self._bounds)
        rates = [self._known_rates.get(each) for each in RequestClass]
        return CandidateTable.of(self.families(leading), rates, leading, (1.0, 1.0, self._dearness))

    def meet(self, request_class: RequestClass) -> None:
        """A request of the class is there; candidates have to say what they bring to it."""
        if request_class in self._known_figures:
            return
        self._rates(request_class)
        tally = self.estimator.cut[request_class]
        tally.refresh()
        self._known_figures[request_class] = tally.figures
        self._forget_tables()

    def refresh(self, num_steps: int, mask_share: Callable[[], float]) -> bool:
        """Take over what was learnt, when enough of it was.

        Args:
            num_steps: steps since this was last called: of those with trees, the reported ones alone.
            mask_share: tells what the grammar mask of a node costs, as a share of what a node costs beside it.

        Returns:
            Whether any table may have changed.
        """
        self._steps_since += num_steps
        num_observed, num_changes = self.estimator.num_observed, self.estimator.num_changes
        if num_changes == self._num_changes:
            is_late = self._bounds.reads_confidence and self._steps_since >= MOST_STEPS_BETWEEN_REFRESHES
            if num_observed < self._refresh_at and not is_late:
                return False
            if num_observed > LONGEST_REFRESH and self._steps_since < STEPS_BETWEEN_REFRESHES:
                return False
        self._num_changes = num_changes
        self._steps_since = 0
        self._refresh_at = num_observed + min(LONGEST_REFRESH, max(self._first_refresh, num_observed // 2))
        self.num_refreshes += 1
        dearness = min(MOST_DEARNESS, 1.0 + round(mask_share() / DEARNESS_STEP) * DEARNESS_STEP)
        has_moved = dearness != self._dearness
        self._dearness = dearness
        for request_class, known in self._known_rates.items():
            table = self.estimator.tables[request_class]
            table.refresh()
            if _have_moved(table.rates, known, NOTED_CHANGE):
                self._known_rates[request_class] = table.rates
                has_moved = True
        for request_class, figures in self._known_figures.items():
            tally = self.estimator.cut[request_class]
            tally.refresh()
            if any(old.have_moved(new, NOTED_CHANGE) for old, new in zip(figures, tally.figures, strict=True)):
                self._known_figures[request_class] = tally.figures
                has_moved = True
        if has_moved:
            self._forget_tables()
        return has_moved

    def _forget_tables(self) -> None:
        self._tables.clear()
        self.version += 1


def _have_moved(new: Rates, old: Rates, share: float) -> bool:
    """Whether any rate that matters has moved by more than a share."""
    return any(
        abs(now - before) > share * max(now, before) + LEAST_CHANGE
        for new_row, old_row in zip(new, old, strict=True)
        for now, before in zip(new_row, old_row, strict=True)
        if now > LEAST_RATE or before > LEAST_RATE
    )
