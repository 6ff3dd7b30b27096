"""The engine in its own thread: requests go in by a queue, and what every step committed comes back to the event loop.

The native kernels release the interpreter while they compute, so HTTP goes on beside a step. Everything that touches
the engine happens on its thread; everything that touches a `Submission` happens on the event loop:

    event loop   submit -> queue                        deliver -> submission -> reader wakes
    engine          take -> add_request -> step -> step ... -^        (one call into the loop per step)

Outputs hold everything committed so far, so a reader that is slow misses intermediate states and no tokens.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from aquiline.errors import UserError
from aquiline.request import RequestOutput, SamplingParams
from aquiline.server.errors import EngineFaultError, RequestTimeoutError, ServerBusyError, ServerStoppingError
from aquiline.server.submission import Submission

MAX_FAILED_STEPS = 3
LOGGER = logging.getLogger(__name__)


class RequestGroup(Protocol):
    """The answers to one prompt, as the engine keeps them."""

    @property
    def is_finished(self) -> bool: ...


class ServedEngine(Protocol):
    """What a server needs of an engine."""

    @property
    def has_unfinished(self) -> bool: ...

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        priority: int = 0,
        speculate: bool = True,
    ) -> RequestGroup: ...

    def abort(self, request_id: str) -> RequestOutput | None: ...

    def step(self) -> list[RequestOutput]: ...


@dataclass(frozen=True)
class EngineRequest:
    """One prompt as the engine is asked."""

    prompt_token_ids: Sequence[int]
    params: SamplingParams
    priority: int = 0
    speculate: bool = True


@dataclass(frozen=True)
class _Add:
    submission: Submission
    index: int
    request_id: str
    request: EngineRequest


@dataclass(frozen=True)
class _Abort:
    request_ids: tuple[str, ...]


@dataclass(frozen=True)
class _Stop:
    pass


StepObserver = Callable[[Sequence[RequestOutput]], None]


class EngineClient:
    """Runs an engine and talks to it.

    Args:
        max_unfinished: most answers that may run and wait together; more are refused.
        on_step: called on the event loop with the outputs of every step, before readers see them.

    Attributes:
        num_unfinished: answers that run or wait.
        has_failed: the engine failed in so many steps on end that it was given up.
        on_give_up: called on the event loop when that happens.
    """

    def __init__(self, engine: ServedEngine, max_unfinished: int, on_step: StepObserver | None = None) -> None:
        self._engine = engine
        self._max_unfinished = max_unfinished
        self._on_step = on_step
        self._commands: queue.SimpleQueue[_Add | _Abort | _Stop] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._submissions: dict[str, tuple[Submission, int]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self.num_unfinished = 0
        self.has_failed = False
        self.on_give_up: Callable[[], None] | None = None
        # Of the engine's thread alone.
        self._groups: dict[str, RequestGroup] = {}
        self._num_failed_steps = 0

    def start(self) -> None:
        """Start the engine's thread; call it on the event loop that will read the answers."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End every request and the engine's thread."""
        self.refuse_new()
        self.abort_all(ServerStoppingError("the server is stopping; ask again when it is back"))
        self._commands.put(_Stop())
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def refuse_new(self) -> None:
        """Take no requests any more; those that run go on."""
        self._is_stopping = True

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken."""
        return self._thread is not None and not self._is_stopping and not self.has_failed

    async def submit(self, requests: Sequence[EngineRequest], timeout: float = 0.0) -> Submission:
        """Hand the prompts of one HTTP request to the engine, all or none.

        Args:
            timeout: seconds until the submission is ended with RequestTimeoutError; 0 never.

        Raises:
            UserError: a prompt that the engine refuses.
            ServerBusyError: the queue is full.
            ServerStoppingError, EngineFaultError: no requests are taken.
        """
        if self.has_failed:
            raise EngineFaultError("the engine has failed")
        if self._is_stopping:
            raise ServerStoppingError("the server is stopping; ask again when it is back")
        num_answers = sum(request.params.n for request in requests)
        if self.num_unfinished + num_answers > self._max_unfinished:
            raise ServerBusyError(
                f"{self.num_unfinished} answers run or wait, and at most {self._max_unfinished} may; ask again later", 1
            )
        submission = Submission([request.params.n for request in requests])
        if timeout:
            submission.timer = asyncio.get_running_loop().call_later(timeout, self._expire, submission, timeout)
        for index, request in enumerate(requests):
            request_id = f"r{next(self._numbers)}"
            submission.request_ids.append(request_id)
            self._submissions[request_id] = (submission, index)
            self.num_unfinished += request.params.n
            self._commands.put(_Add(submission, index, request_id, request))
        try:
            await submission.accepted()
        except BaseException:
            self.abort(submission)
            raise
        return submission

    def abort(self, submission: Submission) -> None:
        """End whatever of a submission still runs; the engine frees it before its next step."""
        if submission.timer is not None:
            submission.timer.cancel()
        running = tuple(request_id for request_id in submission.request_ids if request_id in self._submissions)
        for request_id in running:
            self._forget(request_id)
        if running:
            self._commands.put(_Abort(running))

    def abort_all(self, error: Exception) -> None:
        """End everything; readers get `error`."""
        for submission in {id(entry[0]): entry[0] for entry in self._submissions.values()}.values():
            self.abort(submission)
            submission.fail(error)

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

    def _deliver(self, outputs: Sequence[RequestOutput]) -> None:
        if self._on_step is not None:
            self._on_step(outputs)
        for output in outputs:
            entry = self._submissions.get(output.request_id)
            if entry is not None:
                submission, index = entry
                submission.update(index, output)
                if output.finished:
                    self._forget(output.request_id)

    def _refuse(self, request_id: str, error: Exception) -> None:
        entry = self._submissions.get(request_id)
        if entry is not None:
            self._forget(request_id)
            entry[0].fail(error)

    def _accept(self, request_id: str) -> None:
        entry = self._submissions.get(request_id)
        if entry is not None:
            entry[0].accept()

    def _give_up(self) -> None:
        self.has_failed = True
        self.abort_all(EngineFaultError("the engine has failed"))
        if self.on_give_up is not None:
            self.on_give_up()

    def _post(self, function: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(function, *arguments)

    def _run(self) -> None:
        """The life of the engine's thread."""
        while self._num_failed_steps < MAX_FAILED_STEPS:
            if not self._take_commands():
                return
            if self._engine.has_unfinished:
                self._step()
        self._post(self._give_up)

    def _take_commands(self) -> bool:
        """Carry out what has been asked; waits while there is nothing to compute. False ends the thread."""
        while True:
            try:
                command = self._commands.get(block=not self._engine.has_unfinished)
            except queue.Empty:
                return True
            if isinstance(command, _Stop):
                return False
            if isinstance(command, _Abort):
                for request_id in command.request_ids:
                    self._groups.pop(request_id, None)
                    self._engine.abort(request_id)
            else:
                self._add(command)

    def _add(self, command: _Add) -> None:
        request = command.request
        try:
            group = self._engine.add_request(
                command.request_id,
                request.prompt_token_ids,
                request.params,
                priority=request.priority,
                speculate=request.speculate,
            )
        except UserError as error:
            self._post(self._refuse, command.request_id, error)
        # Whatever else it trips over is about this request; the engine goes on with the others.
        except Exception:
            LOGGER.exception("the engine failed to take a request")
            self._post(self._refuse, command.request_id, EngineFaultError("the engine failed to take this request"))
        else:
            self._groups[command.request_id] = group
            self._post(self._accept, command.request_id)

    def _step(self) -> None:
        try:
            outputs = self._engine.step()
        # Whatever a step trips over, the engine has ended its requests and can go on with the others.
        except Exception:
            LOGGER.exception("a step of the engine failed")
            self._num_failed_steps += 1
            failed = [request_id for request_id, group in self._groups.items() if group.is_finished]
            for request_id in failed:
                del self._groups[request_id]
                self._post(self._refuse, request_id, EngineFaultError("the engine failed in a step of this request"))
            return
        self._num_failed_steps = 0
        for output in outputs:
            if output.finished:
                self._groups.pop(output.request_id, None)
        if outputs:
            self._post(self._deliver, outputs)
