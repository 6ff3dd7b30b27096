"""What a step costs on this machine, by the shape of its tree: the other half of time per committed token.

    step(tree) = everything but the draft, by verify rows
               + bringing the draft up to date, with the root's children
               + one draft level, by its width, for every level below the root that has children

Engines with different trees take their steps in turn, so that all of them meet the machine in the same moods, and the
shortest of many steps counts: what disturbs a step only ever makes it longer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from aquiline.config import SchedulerConfig, SpeculativeConfig
from aquiline.errors import InvalidParameterError
from aquiline.llm import LLM
from aquiline.request import SamplingParams
from aquiline.speculation import StaticTree, parse_speculation

PLAIN, ONE, TWO_LEVELS = "off", "chain:1", "chain:2"
STAR_WIDTHS = (2, 3, 4, 6, 8, 12, 16, 24)
LEVEL_WIDTHS = (2, 4, 8)
MOST_CONTEXT = 256


@dataclass(frozen=True)
class StepCosts:
    """Milliseconds of the parts of a step with one request.

    Attributes:
        context: committed tokens at which they were measured.
        plain_ms: a step of an engine that does not speculate.
        rows_ms: (verify rows, all of a step but the draft), ascending.
        extend_ms: rows of newly committed tokens, and the root's children.
        levels_ms: (nodes of a level, one draft level), ascending.
    """

    context: int
    plain_ms: float
    rows_ms: tuple[tuple[int, float], ...]
    extend_ms: float
    levels_ms: tuple[tuple[int, float], ...]

    def step_ms(self, shape: StaticTree) -> float:
        """A step whose tree has this shape."""
        if shape.num_draft_tokens == 0:
            return self.plain_ms
        inner = set(shape.parents) - {-1, 0}
        widths = [sum(node in inner for node in level) for level in shape.levels[1:]]
        levels = sum(interpolated(self.levels_ms, width) for width in widths if width > 0)
        return interpolated(self.rows_ms, shape.num_draft_tokens + 1) + self.extend_ms + levels

    def as_json(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> StepCosts:
        """The inverse of `as_json`, also after a way through a file."""
        pairs = {
            name: tuple((int(count), float(ms)) for count, ms in fields[name]) for name in ("rows_ms", "levels_ms")
        }
        return cls(int(fields["context"]), float(fields["plain_ms"]), extend_ms=float(fields["extend_ms"]), **pairs)


def interpolated(points: Sequence[tuple[int, float]], count: int) -> float:
    """The value at `count` on straight lines through ascending points, continued beyond the last two.

    Worked example, points (2, 1.0) and (4, 3.0): 3 gives 2.0, 6 gives 5.0, and 1, before the first, gives 1.0.
    """
    counts = [point[0] for point in points]
    if count <= counts[0]:
        return points[0][1]
    if len(points) == 1:
        return points[0][1] * count / counts[0]
    right = min(bisect_left(counts, count), len(points) - 1)
    (low, below), (high, above) = points[right - 1], points[right]
    return below + (above - below) * (count - low) / (high - low)


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds of the draft and of everything else in the steps of one shape."""

    draft_ms: float
    other_ms: float


def measure_costs(
    llm: LLM, prompt_token_ids: Sequence[int], num_rounds: int, on_round: Callable[[int], None] | None = None
) -> StepCosts:
    """Measure steps of a loaded model with one request, at temperature 0.

    Args:
        prompt_token_ids: what is continued; it is repeated or cut to the context that is measured.
        num_rounds: steps of every shape that count.
        on_round: called with the number of finished rounds.

    Raises:
        InvalidParameterError: no draft is loaded, or the context of the model is too short.
    """
    if llm.models.draft is None:
        raise InvalidParameterError("no draft model was loaded; load the model with one to measure its steps")
    widest = min(max(STAR_WIDTHS), llm.models.draft.config.draft_vocab_size)
    shapes = [PLAIN, ONE, TWO_LEVELS, *(f"tree:{width}" for width in STAR_WIDTHS if width <= widest)]
    shapes += [f"tree:{width}x1" for width in LEVEL_WIDTHS if width <= widest]
    context = min(MOST_CONTEXT, llm.engine.sizes.max_model_len // 2)
    if context < 8:
        raise InvalidParameterError("the model's context is too short to measure its steps; it must be at least 16")
    repeated = [*prompt_token_ids] * -(-context // len(prompt_token_ids))
    timers = {shape: _StepTimer(llm, shape, repeated[:context]) for shape in shapes}
    for number in range(num_rounds):
        for timer in timers.values():
            timer.step()
        if on_round is not None:
            on_round(number + 1)
    return costs_of({shape: timer.times() for shape, timer in timers.items()}, context)


def costs_of(times: dict[str, StepTimes], context: int) -> StepCosts:
    """The costs of parts from the times of whole steps, by shape."""
    plain, one = times[PLAIN], times[ONE]
    rows = [(1, plain.other_ms), (2, one.other_ms)]
    levels = [(1, times[TWO_LEVELS].draft_ms - one.draft_ms)]
    for shape, measured in times.items():
        if shape in (PLAIN, ONE, TWO_LEVELS):
            continue
        width, _, has_level = shape.removeprefix("tree:").partition("x")
        if has_level:
            levels.append((int(width), measured.draft_ms - one.draft_ms))
        elif int(width) > 1:
            rows.append((int(width) + 1, measured.other_ms))
    return StepCosts(
        context=context,
        plain_ms=round(plain.other_ms + plain.draft_ms, 4),
        rows_ms=_rising(rows),
        extend_ms=round(one.draft_ms, 4),
        levels_ms=_rising(levels),
    )


def _rising(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Ascending in both: more rows never take less time, so a dip is noise."""
    rising: list[tuple[int, float]] = []
    for count, value in sorted(points):
        lowest = rising[-1][1] if rising else 0.0
        rising.append((count, round(max(value, lowest), 4)))
    return tuple(rising)


class _StepTimer:
    """An engine of its own that decodes one request, step by step."""

    def __init__(self, llm: LLM, speculate: str, prompt_token_ids: Sequence[int]) -> None:
        mode = parse_speculation(speculate)
        config = replace(
            llm.config,
            cache=replace(llm.config.cache, num_blocks=None, kv_cache_gb=None),
            scheduler=SchedulerConfig(
                max_num_seqs=1,
                max_model_len=2 * len(prompt_token_ids),
                max_num_batched_tokens=2 * len(prompt_token_ids),
            ),
            speculative=SpeculativeConfig(mode, lookup="off"),
        )
        self._engine = llm.reconfigured(config).engine
        self._prompt = prompt_token_ids
        self._depth = mode.shape.depth if mode.shape is not None else 0
        self._num_begun = 0
        self._draft_ms: list[float] = []
        self._other_ms: list[float] = []
        self._begin()

    def step(self) -> None:
        """Time one step whose tree is not cut by the end of the context."""
        request = self._engine.scheduler.running[0] if self._engine.scheduler.running else None
        if request is None or self._engine.scheduler.num_remaining_tokens(request) < self._depth + 2:
            self._begin()
        before = dict(self._engine.clock.seconds)
        self._engine.step()
        spent = {phase: 1e3 * (seconds - before[phase]) for phase, seconds in self._engine.clock.seconds.items()}
        self._draft_ms.append(spent["draft"])
        self._other_ms.append(sum(spent.values()) - spent["draft"])

    def times(self) -> StepTimes:
        """The shortest of the steps so far, part by part."""
        return StepTimes(min(self._draft_ms), min(self._other_ms))

    def _begin(self) -> None:
        """Start the request anew, and leave its prefill and two steps behind."""
        self._engine.abort(str(self._num_begun))
        self._num_begun += 1
        params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
        self._engine.add_request(str(self._num_begun), self._prompt, params)
        for _ in range(3):
            self._engine.step()
