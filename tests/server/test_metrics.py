"""The figures for Prometheus: they add up to what clients were told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from aquiline.server.metrics import Metrics, PlainCost
from aquiline.server.step_report import StepReport
from aquiline.server.submission import Run
from tests.server.serving import QUESTION, Running, toy_llm, toy_server
from tests.source_tree import ROOT


def samples_of(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every figure by its name and its labels, the model's name left out."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "model_name"))
            found[sample.name, labels] = sample.value
    return found


def total(text: str, name: str, **labels: str) -> float:
    """A figure of which `labels` are the labels, or 0."""
    return samples_of(text).get((f"aquiline:{name}", tuple(sorted(labels.items()))), 0.0)


@pytest.fixture
def fresh(toy_folder: Path) -> Any:
    with toy_server(toy_llm(toy_folder)) as server:
        yield server


def test_figures_add_up_to_what_clients_are_told(fresh: Running) -> None:
    usages = []
    with fresh.http() as http:
        for body in ({"n": 2, "seed": 1}, {"seed": 2, "speculation": {"mode": "off"}}, {"seed": 3, "max_tokens": 1}):
            answer = http.post("/v1/chat/completions", json={"messages": QUESTION, "max_tokens": 30} | body)
            usages.append(answer.json()["usage"])
        assert http.post("/v1/chat/completions", json={}).status_code == 400
        assert http.get("/no/such/path").status_code == 404
        text = http.get("/metrics").text
    details = [usage["completion_tokens_details"] for usage in usages]
    accepted = sum(detail["accepted_prediction_tokens"] for detail in details)
    rejected = sum(detail["rejected_prediction_tokens"] for detail in details)
    assert total(text, "generation_tokens_total") == sum(usage["completion_tokens"] for usage in usages)
    assert total(text, "prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
    assert total(text, "spec_decode_num_accepted_draft_tokens_total") == accepted
    assert total(text, "spec_decode_num_draft_tokens_total") == accepted + rejected
    at = [total(text, "spec_decode_num_accepted_draft_tokens_per_pos_total", position=str(n)) for n in range(9)]
    assert sum(at) == accepted and at == sorted(at, reverse=True)
    ended = [total(text, "request_success_total", finished_reason=reason) for reason in ("stop", "length")]
    assert sum(ended) == 4
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
        assert total(text, f"{name}_count") == 3
    assert total(text, "time_per_output_token_seconds_count") == 2
    assert total(text, "num_requests_running") == 0 and total(text, "kv_cache_usage_perc") == 0
    assert total(text, "http_requests_total", endpoint="/v1/chat/completions", status="200") == 3
    assert total(text, "http_requests_total", endpoint="/v1/chat/completions", status="400") == 1
    assert total(text, "http_requests_total", endpoint="other", status="404") == 1
    phases = {key: value for key, value in samples_of(text).items() if key[0] == "aquiline:step_phase_seconds_total"}
    assert 0 < sum(phases.values()) <= total(text, "step_seconds_sum")


def test_figures_of_requests_that_are_ended(fresh: Running) -> None:
    with (
        fresh.http() as http,
        http.stream("POST", "/v1/chat/completions", json={"messages": QUESTION, "stream": True}) as response,
    ):
        next(response.iter_lines())
    while not total(text := httpx.get(f"{fresh.url}/metrics").text, "request_aborted_total"):
        assert fresh.client.num_unfinished <= 1
    assert total(text, "request_success_total", finished_reason="abort") == 0


def test_the_estimate_of_plain_decoding_comes_from_plain_steps() -> None:
    metrics = Metrics("m")
    plain, drafted = Run(1, 0, 0), Run(3, 2, 4)
    metrics.observe_step(StepReport(0.5, num_running=2), [drafted, drafted])
    assert total(metrics.exposition().decode(), "decode_step_seconds_total") == 0, "nothing is known yet"
    metrics.observe_step(StepReport(0.1, num_running=2), [plain, plain])
    metrics.observe_step(StepReport(0.15, num_running=2), [drafted, Run(1, 0, 4)])
    metrics.observe_step(StepReport(9.0, num_running=3), [drafted, drafted])
    text = metrics.exposition().decode()
    assert total(text, "decode_step_seconds_total") == pytest.approx(0.25)
    assert total(text, "decode_step_seconds_if_plain_total") == pytest.approx(0.1 + 2 * 0.1)


def test_plain_cost_is_that_of_the_nearest_batch() -> None:
    cost = PlainCost()
    assert cost.estimate(4) is None
    cost.learn(1, 1.0)
    cost.learn(8, 2.0)
    for _ in range(200):
        cost.learn(8, 4.0)
    assert cost.estimate(2) == 1.0 and cost.estimate(6) == pytest.approx(4.0)


def test_every_figure_is_documented() -> None:
    page = (ROOT / "docs" / "server.md").read_text()
    names = {family.name for family in text_string_to_metric_families(Metrics("m").exposition().decode())}
    assert {name for name in names if not name.endswith("_created") and f"`{name}`" not in page} == set()
