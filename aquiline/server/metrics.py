"""Figures for Prometheus, with names in the shape of vLLM's.

An estimate of plain decoding comes from the steps themselves: those in which nothing was drafted tell what a plain step
of so many answers takes. A step that drafted and committed 12 tokens for 8 answers stands for 12 / 8 plain steps of 8.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from aquiline.server.step_report import StepReport
from aquiline.server.submission import Run, Submission

LATENCIES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
TOKEN_TIMES = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0)
NEWEST_SHARE = 0.1


class PlainCost:
    """What a plain step takes, by the number of answers in it: a running mean of the newest ones."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def learn(self, num_answers: int, seconds: float) -> None:
        """A step in which nothing was drafted took `seconds`."""
        known = self._seconds.get(num_answers)
        self._seconds[num_answers] = seconds if known is None else known + NEWEST_SHARE * (seconds - known)

    def estimate(self, num_answers: int) -> float | None:
        """Seconds of a plain step of `num_answers`, from the nearest number that is known; None at first."""
        if not self._seconds:
            return None
        return self._seconds[min(self._seconds, key=lambda known: abs(known - num_answers))]


class Metrics:
    """All figures of one server. Everything here happens on the event loop."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        self._plain_cost = PlainCost()
        self._requests()
        self._steps()
        self._speculation()

    def _requests(self) -> None:
        self._running = self._gauge("num_requests_running", "answers that run")
        self._waiting = self._gauge("num_requests_waiting", "answers that wait for their first step")
        self._finished = self._counter("request_success", "answers by how they ended", "finished_reason")
        self._aborted = self._counter("request_aborted", "requests that were ended before their answer was complete")
        self._http = self._counter("http_requests", "answers of HTTP", "endpoint", "status")
        self._prompt_tokens = self._counter("prompt_tokens", "tokens of prompts")
        self._cached_tokens = self._counter("prompt_tokens_cached", "tokens of prompts that were found in the cache")
        self._ttft = self._histogram("time_to_first_token_seconds", "from arrival to the first token", LATENCIES)
        self._queue = self._histogram("request_queue_time_seconds", "from arrival to the first step", LATENCIES)
        self._tpot = self._histogram("time_per_output_token_seconds", "between tokens, mean of a request", TOKEN_TIMES)
        self._e2e = self._histogram("e2e_request_latency_seconds", "from arrival to the last token", LATENCIES)

    def _steps(self) -> None:
        self._step_seconds = self._histogram("step_seconds", "wall time of a step", TOKEN_TIMES)
        self._phases = self._counter("step_phase_seconds", "wall time of the phases of steps", "phase")
        self._cache_usage = self._gauge("kv_cache_usage_perc", "share of the cache's blocks that requests hold")
        self._preemptions = self._counter("num_preemptions", "requests that lost their blocks to others")
        self._tokens = self._counter("generation_tokens", "committed tokens")
        self._token_seconds = self._histogram(
            "time_per_committed_token_seconds", "wall time of its steps per committed token of a request", TOKEN_TIMES
        )
        self._decode_seconds = self._counter("decode_step_seconds", "wall time of steps whose plain cost is known")
        self._plain_seconds = self._counter(
            "decode_step_seconds_if_plain", "estimate of the time that plain decoding would have taken for those steps"
        )

    def _speculation(self) -> None:
        self._drafts = self._counter("spec_decode_num_drafts", "draft trees that were verified")
        self._draft_tokens = self._counter("spec_decode_num_draft_tokens", "draft tokens that were verified")
        self._accepted = self._counter("spec_decode_num_accepted_draft_tokens", "draft tokens that were committed")
        self._accepted_at = self._counter(
            "spec_decode_num_accepted_draft_tokens_per_pos", "the same by distance from the root", "position"
        )

    def observe_step(self, report: StepReport | None, runs: Sequence[Run]) -> None:
        """A step has ended that added `runs` to answers."""
        self._tokens.inc(sum(run.num_tokens for run in runs))
        drafted = [run for run in runs if run.num_draft_tokens]
        if drafted:
            self._drafts.inc(len(drafted))
            self._draft_tokens.inc(sum(run.num_draft_tokens for run in drafted))
            self._accepted.inc(sum(run.num_accepted for run in drafted))
            for position in range(max(run.num_accepted for run in drafted)):
                count = sum(run.num_accepted > position for run in drafted)
                self._accepted_at.labels(self._model, str(position)).inc(count)
        if report is not None:
            self._observe_report(report, runs)

    def _observe_report(self, report: StepReport, runs: Sequence[Run]) -> None:
        self._observe_load(report)
        self._preemptions.inc(report.num_preemptions)
        self._step_seconds.observe(report.seconds)
        for phase, seconds in report.phase_seconds.items():
            self._phases.labels(self._model, phase).inc(max(0.0, seconds))
        if not runs or len(runs) < report.num_running:
            return
        if not any(run.num_draft_tokens for run in runs):
            self._plain_cost.learn(len(runs), report.seconds)
        plain = self._plain_cost.estimate(len(runs))
        if plain is not None:
            self._decode_seconds.inc(report.seconds)
            self._plain_seconds.inc(plain * sum(run.num_tokens for run in runs) / len(runs))

    def observe_idle(self) -> None:
        """No request is left in the engine."""
        self._observe_load(StepReport(0.0))

    def _observe_load(self, report: StepReport) -> None:
        self._running.set(report.num_running)
        self._waiting.set(report.num_waiting)
        self._cache_usage.set(report.cache_usage)

    def observe_first_step(self, seconds: float) -> None:
        """A request has waited so long for its first step."""
        self._queue.observe(seconds)

    def observe_first_token(self, seconds: float) -> None:
        """A request has waited so long for its first token."""
        self._ttft.observe(seconds)

    def observe_end(self, submission: Submission, seconds: float) -> None:
        """A request has ended, complete or not, so long after its arrival."""
        outputs = submission.outputs
        self._prompt_tokens.inc(sum(len(output.prompt_token_ids) for output in outputs))
        self._cached_tokens.inc(sum(output.num_cached_tokens for output in outputs))
        if not submission.is_complete:
            self._aborted.inc()
            return
        completions = [completion for output in outputs for completion in output.outputs]
        for completion in completions:
            self._finished.labels(self._model, str(completion.finish_reason)).inc()
            self._token_seconds.observe(completion.speculation.time_per_committed_token_ms / 1000.0)
        self._e2e.observe(seconds)
        most_tokens = max(len(completion.token_ids) for completion in completions)
        if submission.first_token_at is not None and most_tokens > 1:
            ttft = submission.first_token_at - submission.submitted_at
            self._tpot.observe((seconds - ttft) / (most_tokens - 1))

    def observe_http(self, endpoint: str, status: int) -> None:
        """HTTP has answered."""
        self._http.labels(self._model, endpoint, str(status)).inc()

    def exposition(self) -> bytes:
        """All figures in Prometheus's text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        made = Counter(f"aquiline:{name}", text, ("model_name", *labels), registry=self.registry)
        return made if labels else made.labels(self._model)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"aquiline:{name}", text, ("model_name",), registry=self.registry).labels(self._model)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        made = Histogram(f"aquiline:{name}", text, ("model_name",), registry=self.registry, buckets=buckets)
        return made.labels(self._model)
