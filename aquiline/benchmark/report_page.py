"""One page of HTML with everything that a set of results says; it needs no other file and no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment

from aquiline.benchmark.report_results import Kind, Result

_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Aquiline: measurements</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px; }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .6rem; text-align: right; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
figure { margin: 1.5rem 0; } figcaption { font-weight: 600; } svg { max-width: 100%; height: auto; }
pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; font-size: 12px; }
</style>
</head>
<body>
<h1>Measurements</h1>
<p>Times are milliseconds. Ratios are to plain decoding in the same run; figures of different runs met the machine in
different states.</p>
{% if overview %}
<h2>All servers</h2>
{% for title, picture in overview.items() %}
<figure><figcaption>{{ title }}</figcaption>{{ picture | safe }}</figure>
{% endfor %}
{% endif %}
{% for section in sections %}
<h2>{{ section.name }}</h2>
{% for title, picture in section.pictures.items() %}
<figure><figcaption>{{ title }}</figcaption>{{ picture | safe }}</figure>
{% endfor %}
<table>
<tr>{% for name in section.columns %}<th>{{ name }}</th>{% endfor %}</tr>
{% for cells in section.cells %}<tr>{% for cell in cells %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>
<details><summary>Where this comes from</summary><pre>{{ section.provenance }}</pre></details>
{% endfor %}
</body>
</html>
"""

# Columns by kind: heading, and the place of the figure in a row.
_FORECAST = {
    "expected step ms": "forecast.expected_step_ms",
    "measured step ms": "forecast.measured_step_ms",
    "expected tokens": "forecast.expected_tokens",
    "committed tokens": "forecast.committed_tokens",
}
_COLUMNS: Mapping[Kind, Mapping[str, str]] = {
    "offline": {
        "batch size": "batch_size",
        "tokens/s": "tokens_per_second",
        "machine ms per token": "time_per_committed_token_ms",
        "acceptance length": "acceptance_length",
        **_FORECAST,
    },
    "latency": {
        "workload": "workload",
        "TTFT": "ttft_ms",
        "TPOT": "tpot_ms",
        "ITL p95": "itl_p95_ms",
        "ms per token": "time_per_committed_token_ms",
        "acceptance length": "acceptance_length",
        **_FORECAST,
    },
    "serving": {
        "answers": "num_complete",
        "of": "num_requests",
        "requests/s": "request_throughput",
        "goodput": "goodput",
        "tokens/s": "output_throughput",
        "TTFT p50": "ttft_ms.p50",
        "TTFT p99": "ttft_ms.p99",
        "TPOT p50": "tpot_ms.p50",
        "TPOT p99": "tpot_ms.p99",
        "ITL p99": "itl_ms.p99",
        "E2EL p50": "e2el_ms.p50",
        "machine ms per token": "time_per_committed_token_ms",
        "acceptance length": "server.acceptance_length",
    },
    "tune": {
        "requests": "num_requests",
        "tree": "text",
        "expected tokens": "expected",
        "step ms": "step_ms",
        "tokens/s": "tokens_per_second",
        "plain tokens/s": "plain_tokens_per_second",
    },
}
_FIRST_COLUMN: Mapping[Kind, str] = {"serving": "load", "tune": "objective", "offline": "variant", "latency": "variant"}


def page_of(
    results: Sequence[Result], pictures: Sequence[Mapping[str, str]], overview: Mapping[str, str] | None = None
) -> str:
    """The page.

    Args:
        pictures: SVG by title, for each result.
        overview: SVG by title, of all measured servers together.
    """
    sections = [_section(result, drawn) for result, drawn in zip(results, pictures, strict=True)]
    return Environment(autoescape=True).from_string(_TEMPLATE).render(sections=sections, overview=overview or {})


def _section(result: Result, pictures: Mapping[str, str]) -> dict[str, Any]:
    columns = _COLUMNS[result.kind]
    figures = [[_figure(row, place) for place in columns.values()] for row in result.rows]
    # A column of which nobody has anything says nothing.
    kept = [index for index in range(len(columns)) if any(row[index] is not None for row in figures)]
    headings = list(columns)
    return {
        "name": f"{result.label} ({result.name})" if result.kind == "serving" else result.name,
        "pictures": pictures,
        "columns": [_FIRST_COLUMN[result.kind], *(headings[index] for index in kept)],
        "cells": [
            [result.heading(row), *(_shown(cells[index]) for index in kept)]
            for row, cells in zip(result.rows, figures, strict=True)
        ],
        "provenance": json.dumps(result.provenance, indent=2, ensure_ascii=False),
    }


def _figure(row: Mapping[str, Any], place: str) -> Any:
    """The figure at a place such as `ttft_ms.p50`; None where the row has none."""
    found: Any = row
    for name in place.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
