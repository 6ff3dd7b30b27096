"""The picture of a run: drawn at any time, from whatever there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aquiline.training.plot import write_plot


def evaluation(num_tokens: int, rates: list[float]) -> dict[str, Any]:
    return {
        "kind": "evaluation",
        "num_tokens": num_tokens,
        "time_per_committed_token_ms": 3.0 - sum(rates),
        "plain_time_per_token_ms": 3.0,
        "best_shape": "chain:2",
        "predicted": {"chain": {"conditional_acceptance_per_position": rates}},
    }


STEPS = [{"kind": "step", "num_tokens": n, "losses": [5.0 / n] * (1 + n // 20)} for n in (10, 20, 30)]
EVALUATIONS = [evaluation(0, []), evaluation(10, [0.2]), evaluation(20, [0.4, 0.3])]


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([], id="nothing"),
        pytest.param(STEPS, id="steps"),
        pytest.param(EVALUATIONS[:1], id="start"),
        pytest.param(STEPS + EVALUATIONS, id="all"),
    ],
)
def test_a_picture_is_drawn(records: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "progress.png"
    write_plot(records, path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    assert [file.name for file in tmp_path.iterdir()] == ["progress.png"]
