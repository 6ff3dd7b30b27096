"""Guided outputs: legal, and the same with and without speculation."""

from __future__ import annotations

import json
import re

import pytest

from aquiline.guided import GuidedParams
from aquiline.request import FinishReason
from tests.engine.guided_work import JOBS, guided_engine
from tests.engine.strategies import FIXED_MODES
from tests.engine.workloads import answers, assert_nothing_left, run_jobs
from tests.tiny import TinySettings


def check_text(guide: GuidedParams, text: str) -> None:
    if guide.kind == "json_schema":
        assert set(json.loads(text)) == {"name", "age", "tags"}
    elif guide.regex is not None:
        assert re.fullmatch(guide.regex, text)
    elif guide.choice is not None:
        assert text in guide.choice
    else:
        assert re.fullmatch("a*c[0-9]b*", text) and text.count("a") == text.count("b")


@pytest.mark.parametrize("mode", FIXED_MODES[1:])
def test_guided_requests_together_and_speculating_answer_as_alone_and_plainly(mode: str) -> None:
    engine = guided_engine(TinySettings(mode, max_num_seqs=8, num_blocks=400, check_consistency=True))
    outputs = run_jobs(engine, JOBS)
    for index, job in enumerate(JOBS):
        alone = run_jobs(guided_engine(TinySettings(num_blocks=400)), [job])["0"]
        assert answers(outputs[str(index)]) == answers(alone)
        sample = alone.outputs[0]
        assert job.params.guided is not None
        if sample.finish_reason is FinishReason.STOP:
            check_text(job.params.guided, sample.text)
    finished = [output.outputs[0].finish_reason is FinishReason.STOP for output in outputs.values()]
    assert sum(finished) >= len(JOBS) - 2
    assert_nothing_left(engine)
