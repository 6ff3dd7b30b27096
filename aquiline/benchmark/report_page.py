"""One page of HTML with everything that a set of results says; it needs no other file and no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment

from aquiline.benchmark.report_results import Result, variant_of

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

_COLUMNS = {
    "offline": ("batch_size", "tokens_per_second", "time_per_committed_token_ms", "acceptance_length"),
    "latency": ("workload", "ttft_ms", "tpot_ms", "itl_p95_ms", "time_per_committed_token_ms", "acceptance_length"),
}


def page_of(results: Sequence[Result], pictures: Sequence[Mapping[str, str]]) -> str:
    """The page.

    Args:
        pictures: SVG by title, for each result.
    """
    sections = [
        {
            "name": result.name,
            "pictures": drawn,
            "columns": ["variant", *(name.replace("_", " ") for name in _COLUMNS[result.kind])],
            "cells": [
                [variant_of(row), *(_shown(row.get(name)) for name in _COLUMNS[result.kind])] for row in result.rows
            ],
            "provenance": json.dumps(result.provenance, indent=2, ensure_ascii=False),
        }
        for result, drawn in zip(results, pictures, strict=True)
    ]
    return Environment(autoescape=True).from_string(_TEMPLATE).render(sections=sections)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
