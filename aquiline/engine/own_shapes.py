"""Trees whose shape a request chooses for itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aquiline.config import SpeculativeConfig
from aquiline.engine.tree_families import TreeBounds
from aquiline.errors import InvalidParameterError
from aquiline.request import SamplingParams
from aquiline.speculation import DynamicTree, SpeculationMode, TreeShape, max_children


@dataclass(frozen=True)
class RequestSpeculation:
    """How one request speculates.

    Attributes:
        drafts: the draft model follows it.
        looks_up: draft tokens may be looked up for it, or foretold by its grammar.
        own_shape: of its tree in every step; None: of the step's.
    """

    drafts: bool
    looks_up: bool
    own_shape: TreeShape | None = None


class OwnShapes:
    """Settles what requests ask for.

    Args:
        config: of the engine.
        bounds: of its trees; a shape that needs more room is refused.
        draft_vocab_size: None without a draft model.
    """

    def __init__(self, config: SpeculativeConfig, bounds: TreeBounds, draft_vocab_size: int | None) -> None:
        self._config = config
        self._bounds = bounds
        self._draft_vocab_size = draft_vocab_size
        self._has_draft = draft_vocab_size is not None

    def settle(self, params: SamplingParams) -> RequestSpeculation:
        """How a request with these parameters speculates.

        Raises:
            InvalidParameterError: a shape that this engine cannot grow.
        """
        asked = params.speculation_mode
        if asked.is_off:
            return RequestSpeculation(drafts=False, looks_up=False)
        if asked.shape is None or asked.shape == self._config.mode.shape:
            return RequestSpeculation(self._has_draft, looks_up=True)
        self._check(asked, asked.shape)
        # As an engine would that has this shape for all its requests.
        looks_up = replace(self._config, mode=asked, table=None).looks_up(self._has_draft)
        if not self._has_draft and not looks_up:
            raise InvalidParameterError(
                f"speculation is {asked.text!r}, and this engine has no draft model and looks nothing up; ask for off"
                " or auto"
            )
        return RequestSpeculation(self._has_draft, looks_up or params.guided is not None, asked.shape)

    def _check(self, asked: SpeculationMode, shape: TreeShape) -> None:
        given = f"speculation is {asked.text!r}"
        if self._config.mode.is_off:
            raise InvalidParameterError(f"{given}, and this engine was started with off; ask for off or auto")
        if isinstance(shape, DynamicTree) and self._config.acceptance == "multi_round":
            raise InvalidParameterError(f"{given}; under the rule multi_round a shape is chain:, tree: or paths:")
        if self._draft_vocab_size is None:
            return
        if max_children(shape) > self._draft_vocab_size:
            raise InvalidParameterError(
                f"{given}, with {max_children(shape)} children of one node; the draft knows only"
                f" {self._draft_vocab_size} tokens"
            )
        most, needed = self._bounds.num_scratch_places, TreeBounds.of_shapes([shape]).num_scratch_places
        if needed > most:
            raise InvalidParameterError(
                f"{given}, which takes {needed} draft nodes; this engine has room for {most} of each request: ask for a"
                " smaller shape, or for auto"
            )
