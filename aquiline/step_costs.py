"""Costs of the models of one `LLM`: read where they were measured before, and else measured within about a second."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch

from aquiline.config import EngineConfig
from aquiline.engine.acceptance import AcceptanceEstimator
from aquiline.engine.acceptance_prior import AcceptancePrior, AcceptancePriors
from aquiline.engine.cost_model import CostModel
from aquiline.engine.engine import EngineModels
from aquiline.engine.lookup_costs import LookupPlanner, unmeasured_costs
from aquiline.engine.plan import StepPlanner
from aquiline.engine.planner_choice import bounds_of, planner_for
from aquiline.engine.profile import ProfileKey, StoredProfile, load_profile, machine_identity, save_profile
from aquiline.engine.tuning import SHORT_BUDGET_SECONDS, SHORT_ROUNDS, SHORT_STAGES, TuneStage, measure_costs
from aquiline.errors import ModelFormatError, UserError
from aquiline.kernels import cpu
from aquiline.model_store import aquiline_home
from aquiline.models.draft_metadata import read_draft_metadata, served_quantization

CostCallback = Callable[[str, int, int], None]
"""Called with why costs are being measured, how many steps are done, and of how many."""

GENERIC = "generic"


def profile_folder() -> Path:
    """Where profiles are kept, beside the models."""
    return aquiline_home() / "profiles"


@dataclass
class StepCostBook:
    """Where planners come from. Engines of the same models go on with what earlier ones have learnt.

    Attributes:
        draft: its folder; None: there is none.
        on_progress: called while costs are being measured.
    """

    target: Path
    draft: Path | None
    backend: str
    num_threads: int
    on_progress: CostCallback | None = None
    _known: dict[ProfileKey, StoredProfile] = field(default_factory=dict)
    _costs: dict[ProfileKey, CostModel] = field(default_factory=dict)
    # Tokens looked up leave the draft the harder places, and another rule accepts in another way.
    _estimators: dict[tuple[bool, str], AcceptanceEstimator] = field(default_factory=dict)

    def planner(self, models: EngineModels, config: EngineConfig) -> StepPlanner | None:
        """The planner of an engine; None where the engine's own will do.

        AQUILINE_COSTS=generic measures nothing, reads nothing, and lets no clock decide.
        """
        speculative = config.speculative
        is_generic = os.environ.get("AQUILINE_COSTS") == GENERIC
        if models.draft is None and speculative.looks_up(has_draft=False) and not is_generic:
            return LookupPlanner(self._costs.setdefault(self.key(config), unmeasured_costs()))
        if models.draft is None or not speculative.mode.is_auto or speculative.table is not None or is_generic:
            return None
        is_host_memory = models.target.device.type == "cpu"
        bounds = bounds_of(speculative, models.draft.config.draft_vocab_size, is_host_memory)
        return planner_for(speculative, bounds, self._cost_model(models, config), self._estimator(config))

    def _cost_model(self, models: EngineModels, config: EngineConfig) -> CostModel:
        """Costs of these settings, with what steps of earlier engines have taught."""
        key = self.key(config)
        if key not in self._costs:
            self._costs[key] = CostModel(self.profile(models, config).costs)
        return self._costs[key]

    def _estimator(self, config: EngineConfig) -> AcceptanceEstimator:
        """Acceptance as far as it is known, for the requests of a new engine."""
        speculative = config.speculative
        key = (speculative.looks_up(has_draft=True), speculative.acceptance)
        if key not in self._estimators:
            self._estimators[key] = AcceptanceEstimator(self.priors())
        return self._estimators[key].successor()

    def priors(self) -> AcceptancePriors:
        """What the draft says of its own acceptance, as far as it says anything."""
        if self.draft is None:
            return AcceptancePriors()
        metadata = read_draft_metadata(self.draft)
        greedy, sampled = metadata.acceptance_prior, metadata.acceptance_prior_sampled
        return AcceptancePriors(
            AcceptancePrior(greedy) if greedy else AcceptancePrior(), AcceptancePrior(sampled) if sampled else None
        )

    def profile(self, models: EngineModels, config: EngineConfig) -> StoredProfile:
        """Costs for these settings; what was stored for others, or is damaged, is measured again."""
        key = self.key(config)
        if key not in self._known:
            reason = "measuring step times"
            stored = None
            try:
                stored = load_profile(profile_folder(), key)
            except ModelFormatError:
                reason = "measuring step times again"
            if stored is None:
                stored = self.measure(models, config, SHORT_STAGES, SHORT_ROUNDS, reason)
                # A home that cannot be written is no reason to refuse service; the next start measures again.
                with suppress(UserError):
                    save_profile(profile_folder(), stored)
            self._known[key] = stored
        return self._known[key]

    def measure(
        self,
        models: EngineModels,
        config: EngineConfig,
        stages: tuple[TuneStage, ...],
        num_rounds: int,
        reason: str = "measuring step times",
    ) -> StoredProfile:
        """Run the steps of some stages and fit costs to them."""

        def show(num_done: int, num_total: int) -> None:
            if self.on_progress is not None:
                self.on_progress(reason, num_done, num_total)

        is_short = stages is SHORT_STAGES
        budget = SHORT_BUDGET_SECONDS if is_short else math.inf
        costs, num_steps = measure_costs(models, config, stages, num_rounds, show, budget)
        date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
        return StoredProfile(self.key(config), costs, num_steps, date, is_short)

    def key(self, config: EngineConfig) -> ProfileKey:
        """What a profile for these settings is for."""
        return ProfileKey(
            model=_identity(self.target),
            draft=None if self.draft is None else _identity(self.draft),
            backend=self.backend,
            quantization=config.quantization,
            draft_quantization=self._draft_quantization(config.draft_quantization),
            dtype=config.dtype,
            kv_dtype=config.kv_dtype,
            num_threads=self.num_threads,
            device="cpu",
            kernels=cpu.level() if self.backend == "cpu" else f"torch {torch.__version__}",
            machine=machine_identity(),
            release=_release(),
        )

    def _draft_quantization(self, asked: str) -> str:
        if self.draft is None or self.backend != "cpu":
            return asked
        return served_quantization(asked, read_draft_metadata(self.draft))


def _identity(path: Path) -> str:
    """Name and size of a model: another file of the same name and size has the same matrices, and so the same costs."""
    files = [path] if path.is_file() else sorted(file for file in path.glob("*.safetensors"))
    return f"{path.resolve().name}, {sum(file.stat().st_size for file in files)} bytes"


def _release() -> str:
    try:
        return metadata.version("aquiline")
    except metadata.PackageNotFoundError:
        return "unknown"
