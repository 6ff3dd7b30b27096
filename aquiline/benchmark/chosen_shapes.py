"""What the planner would choose at every load, before it has seen any acceptance."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aquiline.config import Objective, SpeculativeConfig
from aquiline.engine.acceptance import USUAL_SKILL
from aquiline.engine.acceptance_prior import AcceptancePriors
from aquiline.engine.cost_model import CostModel, CostProfile
from aquiline.engine.plan import StepLoad
from aquiline.engine.planner import AutoPlanner
from aquiline.engine.planner_choice import bounds_of
from aquiline.engine.planner_decisions import PlannerSettings
from aquiline.models.model_config import EagleConfig
from aquiline.request import Request, SamplingParams
from aquiline.speculation import spelt

LOADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
CONTEXT = 256


@dataclass(frozen=True)
class ChosenShape:
    """The choice for one load.

    Attributes:
        text: as `--speculate` takes it.
        expected: committed tokens of a step, all requests together.
    """

    num_requests: int
    text: str
    expected: float
    step_ms: float
    tokens_per_second: float
    plain_tokens_per_second: float


def chosen_shapes(
    costs: CostProfile, config: SpeculativeConfig, draft: EagleConfig, priors: AcceptancePriors | None = None
) -> list[ChosenShape]:
    """The planner's first choice for each of LOADS, every request greedy and with a context of 256 tokens."""
    bounds = bounds_of(config, draft.draft_vocab_size, is_host_memory=True)
    settings = PlannerSettings(bounds, config.objective, priors or AcceptancePriors())
    found = []
    for num_requests in LOADS:
        planner = AutoPlanner(CostModel(costs, learns=False), settings)
        load = _load(num_requests)
        plain = planner.forecasts(load)[0]
        planner.plan(load)
        best = planner.last
        assert best is not None
        shape = best.candidate.shape.truncated(best.candidate.num_draft_tokens[USUAL_SKILL])
        found.append(
            ChosenShape(
                num_requests,
                spelt(shape),
                best.expected,
                1000.0 * best.seconds,
                best.expected / best.seconds,
                plain.expected / plain.seconds,
            )
        )
    return found


def chosen_by_objective(
    costs: CostProfile, config: SpeculativeConfig, draft: EagleConfig, priors: AcceptancePriors | None = None
) -> dict[str, list[ChosenShape]]:
    """First choices under the objective that is set, and under `throughput` and `latency` whatever is set."""
    objectives = (config.objective, Objective("throughput"), Objective("latency"))
    return {
        objective.text: chosen_shapes(costs, replace(config, objective=objective), draft, priors)
        for objective in dict.fromkeys(objectives)
    }


def _load(num_requests: int) -> StepLoad:
    requests = []
    for index in range(num_requests):
        request = Request(f"r{index}", (0,) * CONTEXT, SamplingParams(temperature=0.0), seed=0)
        request.token_ids.append(0)
        request.num_computed_tokens, request.num_draft_rows = CONTEXT, CONTEXT - 1
        requests.append(request)
    return StepLoad(num_requests, requests, requests, CONTEXT * num_requests)
