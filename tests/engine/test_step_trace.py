"""Traces of steps: every phase, every gap, bounded memory."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from aquiline.engine.chrome_trace import DEVICE_TRACK, PHASE_TRACK, Event, chrome_trace
from aquiline.engine.stats import PHASES
from aquiline.engine.step_trace import StepFacts, StepRecorder
from aquiline.request import SamplingParams
from tests.engine.workloads import Job, make_engine, random_prompt, run_jobs
from tests.tiny import TinySettings


def facts(step: int) -> StepFacts:
    return StepFacts(step, 1, 0, 3, 0, 2, 1, 2)


def recorded(max_steps: int = 10, num_steps: int = 2) -> StepRecorder:
    """Steps of 3 seconds each, one second apart: verify 2 s, commit 1 s."""
    recorder = StepRecorder(max_steps)
    for step in range(num_steps):
        recorder.start(100.0 + 4 * step)
        recorder.lap("verify", 102.0 + 4 * step)
        recorder.lap("commit", 103.0 + 4 * step)
        recorder.finish(facts(step))
    return recorder


def spans(recorder: StepRecorder, track: int) -> list[tuple[str, float, float]]:
    """(name, start, end) in seconds of what one track shows, in order."""
    events = chrome_trace(recorder.records)["traceEvents"]
    found = [event for event in events if event["ph"] == "X" and event["tid"] == track]
    return [(event["name"], event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6) for event in found]


def test_phases_follow_one_another_and_so_do_steps() -> None:
    assert spans(recorded(), PHASE_TRACK) == [
        ("step 0", 0.0, 3.0),
        ("verify", 0.0, 2.0),
        ("commit", 2.0, 3.0),
        ("between steps", 3.0, 4.0),
        ("step 1", 4.0, 7.0),
        ("verify", 4.0, 6.0),
        ("commit", 6.0, 7.0),
    ]


def test_the_device_waits_from_the_end_of_its_work_to_the_next() -> None:
    assert spans(recorded(), DEVICE_TRACK) == [
        ("verify", 0.0, 2.0),
        ("waits for the host", 2.0, 4.0),
        ("verify", 4.0, 6.0),
    ]


def test_a_step_carries_its_facts() -> None:
    trace = chrome_trace(recorded().records)
    step = next(event for event in trace["traceEvents"] if event["name"] == "step 1")
    assert step["args"]["num_committed_tokens"] == 2 and step["args"]["num_lookup_tokens"] == 1
    counters = [event["args"] for event in trace["traceEvents"] if event["ph"] == "C" and event["name"] == "tokens"]
    assert counters == [{"draft_tokens": 2, "lookup_tokens": 1, "committed_tokens": 2}] * 2


def test_only_the_newest_steps_are_kept() -> None:
    recorder = recorded(max_steps=3, num_steps=8)
    assert [record.facts for record in recorder.records] == [facts(5), facts(6), facts(7)]
    trace = chrome_trace(recorder.records, recorder.num_dropped)
    assert trace["otherData"] == {"num_steps": 3, "num_dropped_steps": 5}
    assert min(event["ts"] for event in trace["traceEvents"] if event["ph"] == "X") == 0.0


def test_a_step_that_does_not_finish_is_shown_as_failed() -> None:
    recorder = StepRecorder()
    recorder.start(1.0)
    recorder.lap("schedule", 2.0)
    recorder.start(3.0)
    recorder.start(5.0)
    recorder.lap("schedule", 6.0)
    recorder.finish(facts(0))
    assert [name for name, _, _ in spans(recorder, PHASE_TRACK) if "step" in name] == [
        "failed step",
        "between steps",
        "step 0",
    ]


def test_nothing_recorded_is_a_trace_without_steps() -> None:
    assert chrome_trace(())["otherData"]["num_steps"] == 0


def events_of_a_run() -> list[Event]:
    engine = make_engine(TinySettings("chain:2", lookup="on"))
    recorder = StepRecorder()
    engine.clock.recorder = recorder
    jobs = [Job(random_prompt(7, seed), SamplingParams(seed=seed, max_tokens=6, ignore_eos=True)) for seed in range(3)]
    outputs = run_jobs(engine, jobs)
    assert len(recorder.records) == engine.num_steps
    totals = {name: 0 for name in ("num_draft_tokens", "num_lookup_tokens", "num_committed_tokens")}
    for output in outputs.values():
        for name in totals:
            totals[name] += getattr(output.outputs[0].speculation, name)
    events: list[Event] = json.loads(json.dumps(chrome_trace(recorder.records)))["traceEvents"]
    steps = [event["args"] for event in events if event["name"].startswith("step ")]
    assert {name: sum(step[name] for step in steps) for name in totals} == totals
    assert steps[0]["num_prefill_rows"] == steps[0]["num_rows"] == 21
    return events


def test_a_real_run_has_every_phase_and_spans_that_do_not_overlap() -> None:
    events = events_of_a_run()
    names = {event["name"] for event in events}
    assert set(PHASES) <= names and "waits for the host" in names
    for track, is_shown in ((PHASE_TRACK, PHASES), (DEVICE_TRACK, (*PHASES, "waits for the host"))):
        own = [e for e in events if e["ph"] == "X" and e["tid"] == track and e["name"] in (*is_shown, "between steps")]
        for before, after in pairwise(own):
            assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=0.002)


def test_recording_changes_no_token() -> None:
    job = Job(random_prompt(5), SamplingParams(seed=1, max_tokens=8))
    plain, traced = make_engine(TinySettings("chain:2")), make_engine(TinySettings("chain:2"))
    traced.clock.recorder = StepRecorder()
    assert run_jobs(plain, [job])["0"].outputs[0].token_ids == run_jobs(traced, [job])["0"].outputs[0].token_ids
