"""The engine as the event loop sees it: requests go in, and what every step committed comes back.

Everything that touches the engine happens on its own thread, everything that touches a `Submission` on the event loop:

    event loop   submit -> queue                        on_step -> submission -> reader wakes
    engine          take -> add_request -> step -> step ... -^        (one call into the loop per step)

The native kernels release the interpreter while they compute, so HTTP goes on beside a step. Outputs hold everything
committed so far, so a reader that is slow misses intermediate states and no tokens.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence

from aquiline.server.engine_thread import EngineRequest, EngineThread, ServedEngine, StepNews
from aquiline.server.errors import EngineFaultError, RequestTimeoutError, ServerBusyError, ServerStoppingError
from aquiline.server.live import LiveFigures
from aquiline.server.metrics import Metrics
from aquiline.server.step_report import Reporter
from aquiline.server.submission import Run, Submission


class EngineClient:
    """Runs an engine and talks to it.

    Args:
        max_unfinished: most answers that may run and wait together; more are refused.
        reporter: makes a report after each step, on the engine's thread.

    Attributes:
        num_unfinished: answers that run or wait.
        has_failed: the engine failed in so many steps on end that it was given up.
        after_give_up: called when that happens.
        live: what the page shows.
        ended: fails with the error of `abort_all`, for work on requests that the engine does not know yet.
    """

    def __init__(
        self, engine: ServedEngine, max_unfinished: int, metrics: Metrics, reporter: Reporter | None = None
    ) -> None:
        self.metrics = metrics
        self.num_unfinished = 0
        self.has_failed = False
        self.after_give_up: Callable[[], None] | None = None
        self.live = LiveFigures()
        self.ended: asyncio.Future[None]
        self._thread = EngineThread(engine, self, reporter)
        self._max_unfinished = max_unfinished
        self._numbers = itertools.count()
        self._submissions: dict[str, tuple[Submission, int]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False

    def start(self) -> None:
        """Start the engine's thread; call it on the event loop that will read the answers."""
        self._loop = asyncio.get_running_loop()
        self.ended = self._loop.create_future()
        self._thread.start()

    async def stop(self) -> None:
        """End every request and the engine's thread."""
        self.refuse_new()
        self.abort_all(ServerStoppingError("the server is stopping; ask again when it is back"))
        await asyncio.to_thread(self._thread.stop)

    def refuse_new(self) -> None:
        """Take no requests any more; those that run go on."""
        self._is_stopping = True

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken."""
        return self._loop is not None and not self._is_stopping and not self.has_failed

    async def submit(
        self, requests: Sequence[EngineRequest], timeout: float = 0.0, keeps_runs: bool = True
    ) -> Submission:
        """Hand the prompts of one HTTP request to the engine, all or none.

        Args:
            timeout: seconds until the submission is ended with RequestTimeoutError; 0 never.
            keeps_runs: whoever reads it wants to know the runs.

        Raises:
            UserError: a prompt that the engine refuses.
            ServerBusyError: the queue is full.
            ServerStoppingError, EngineFaultError: no requests are taken.
        """
        self._check_may_submit(sum(request.params.n for request in requests))
        submission = Submission([request.params.n for request in requests], keeps_runs)
        if timeout:
            submission.timer = asyncio.get_running_loop().call_later(timeout, self._expire, submission, timeout)
        for index, request in enumerate(requests):
            request_id = f"r{next(self._numbers)}"
            submission.request_ids.append(request_id)
            self._submissions[request_id] = (submission, index)
            self.num_unfinished += request.params.n
            self._thread.add(request_id, request)
        try:
            await submission.accepted()
        except BaseException:
            self.abort(submission)
            raise
        return submission

    def _check_may_submit(self, num_answers: int) -> None:
        if self.has_failed:
            raise EngineFaultError("the engine has failed")
        if self._is_stopping:
            raise ServerStoppingError("the server is stopping; ask again when it is back")
        if self.num_unfinished + num_answers > self._max_unfinished:
            raise ServerBusyError(
                f"{self.num_unfinished} answers run or wait, and at most {self._max_unfinished} may; ask again later", 1
            )

    def abort(self, submission: Submission) -> None:
        """End whatever of a submission still runs; the engine frees it before its next step."""
        if submission.timer is not None:
            submission.timer.cancel()
        running = tuple(request_id for request_id in submission.request_ids if request_id in self._submissions)
        for request_id in running:
            self._forget(request_id)
        if running:
            self._thread.abort(running)

    def abort_all(self, error: Exception) -> None:
        """End everything; readers get `error`."""
        for submission in {id(entry[0]): entry[0] for entry in self._submissions.values()}.values():
            self.abort(submission)
            submission.fail(error)
        if not self.ended.done():
            self.ended.set_exception(error)
            # It is no fault when nobody waits.
            self.ended.exception()

    def _expire(self, submission: Submission, timeout: float) -> None:
        self.abort(submission)
        submission.fail(
            RequestTimeoutError(
                f"the request took longer than {timeout:g} seconds, which is the limit of this server; ask for fewer"
                " tokens"
            )
        )

    def _forget(self, request_id: str) -> None:
        submission, index = self._submissions.pop(request_id)
        self.num_unfinished -= submission.nums_answers[index]

    def post(self, function: Callable[..., None], *arguments: object) -> None:
        """Have the event loop call `function`."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(function, *arguments)

    def on_accepted(self, request_id: str) -> None:
        """The engine has taken a request."""
        entry = self._submissions.get(request_id)
        if entry is not None:
            entry[0].accept()

    def on_refused(self, request_id: str, error: Exception) -> None:
        """The engine has refused a request, or failed in a step of it."""
        entry = self._submissions.get(request_id)
        if entry is not None:
            self._forget(request_id)
            entry[0].fail(error)

    def on_step(self, news: StepNews) -> None:
        """The engine has run a step."""
        now = time.perf_counter()
        for request_id in news.started_ids:
            entry = self._submissions.get(request_id)
            if entry is not None:
                self.metrics.observe_first_step(now - entry[0].submitted_at)
        runs: list[Run] = []
        for output in news.outputs:
            entry = self._submissions.get(output.request_id)
            if entry is None:
                continue
            submission, index = entry
            is_first = submission.first_token_at is None
            runs += submission.update(index, output)
            if is_first:
                self.metrics.observe_first_token(now - submission.submitted_at)
            if output.finished:
                self._forget(output.request_id)
        self.metrics.observe_step(news.report, runs)
        self.live.observe_step(news.report, runs)

    def on_idle(self) -> None:
        """The engine has no requests left, though no step has ended the last one."""
        self.metrics.observe_idle()
        self.live.observe_idle()

    def on_give_up(self) -> None:
        """The engine has failed too often."""
        self.has_failed = True
        self.abort_all(EngineFaultError("the engine has failed"))
        if self.after_give_up is not None:
            self.after_give_up()
