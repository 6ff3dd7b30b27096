"""The thread that an engine runs in: it takes what has been asked, steps, and tells a listener what came of it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from aquiline.errors import UserError
from aquiline.request import RequestOutput, RequestStatus, SamplingParams
from aquiline.server.errors import EngineFaultError
from aquiline.server.step_report import Reporter, StepReport

MAX_FAILED_STEPS = 3
LOGGER = logging.getLogger(__name__)


class OneRequest(Protocol):
    """One answer, as the engine keeps it."""

    @property
    def status(self) -> RequestStatus: ...


class OneSample(Protocol):
    """One answer and its text."""

    @property
    def request(self) -> OneRequest: ...


class RequestGroup(Protocol):
    """The answers to one prompt, as the engine keeps them."""

    @property
    def is_finished(self) -> bool: ...

    @property
    def samples(self) -> Sequence[OneSample]: ...


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
    ) -> RequestGroup: ...

    def abort(self, request_id: str) -> RequestOutput | None: ...

    def step(self) -> list[RequestOutput]: ...


@dataclass(frozen=True)
class EngineRequest:
    """One prompt as the engine is asked."""

    prompt_token_ids: Sequence[int]
    params: SamplingParams
    priority: int = 0


@dataclass(frozen=True)
class StepNews:
    """What one step has come to.

    Attributes:
        started_ids: requests that took part in a step for the first time.
        report: None where nobody makes one.
    """

    outputs: Sequence[RequestOutput]
    started_ids: Sequence[str]
    report: StepReport | None


class EngineListener(Protocol):
    """Whom the thread tells; `post` calls these methods elsewhere, one after the other."""

    def post(self, function: Callable[..., None], *arguments: object) -> None: ...

    def on_accepted(self, request_id: str) -> None: ...

    def on_refused(self, request_id: str, error: Exception) -> None: ...

    def on_step(self, news: StepNews) -> None: ...

    def on_idle(self) -> None: ...

    def on_give_up(self) -> None: ...


@dataclass(frozen=True)
class _Add:
    request_id: str
    request: EngineRequest


@dataclass(frozen=True)
class _Abort:
    request_ids: tuple[str, ...]


@dataclass(frozen=True)
class _Stop:
    pass


class EngineThread:
    """Runs an engine. Its public methods may be called from any thread."""

    def __init__(self, engine: ServedEngine, listener: EngineListener, reporter: Reporter | None) -> None:
        self._engine = engine
        self._listener = listener
        self._reporter = reporter
        self._commands: queue.SimpleQueue[_Add | _Abort | _Stop] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._groups: dict[str, RequestGroup] = {}
        self._unstarted: dict[str, RequestGroup] = {}
        self._num_failed_steps = 0

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def add(self, request_id: str, request: EngineRequest) -> None:
        """Ask for a request; the listener hears whether it is accepted."""
        self._commands.put(_Add(request_id, request))

    def abort(self, request_ids: tuple[str, ...]) -> None:
        """End requests before the next step; nobody hears of them any more."""
        self._commands.put(_Abort(request_ids))

    def stop(self) -> None:
        """End the thread when it has done what was asked before, and wait for its end."""
        self._commands.put(_Stop())
        self._thread.join()

    def _run(self) -> None:
        while self._num_failed_steps < MAX_FAILED_STEPS:
            if not self._take_commands():
                return
            if self._engine.has_unfinished:
                self._step()
        self._listener.post(self._listener.on_give_up)

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
                    self._forget(request_id)
                    self._engine.abort(request_id)
                self._tell_idle()
            else:
                self._add(command)

    def _add(self, command: _Add) -> None:
        request = command.request
        try:
            group = self._engine.add_request(
                command.request_id, request.prompt_token_ids, request.params, priority=request.priority
            )
        except UserError as error:
            self._refuse(command.request_id, error)
        # Whatever else it trips over is about this request; the engine goes on with the others.
        except Exception:
            LOGGER.exception("the engine failed to take a request")
            self._refuse(command.request_id, EngineFaultError("the engine failed to take this request"))
        else:
            self._groups[command.request_id] = self._unstarted[command.request_id] = group
            self._listener.post(self._listener.on_accepted, command.request_id)

    def _refuse(self, request_id: str, error: Exception) -> None:
        self._forget(request_id)
        self._listener.post(self._listener.on_refused, request_id, error)

    def _forget(self, request_id: str) -> None:
        self._groups.pop(request_id, None)
        self._unstarted.pop(request_id, None)

    def _step(self) -> None:
        started_at = time.perf_counter()
        try:
            outputs = self._engine.step()
        # Whatever a step trips over, the engine has ended its requests and can go on with the others.
        except Exception:
            LOGGER.exception("a step of the engine failed")
            self._num_failed_steps += 1
            for request_id in [name for name, group in self._groups.items() if group.is_finished]:
                self._refuse(request_id, EngineFaultError("the engine failed in a step of this request"))
            self._tell_idle()
            return
        self._num_failed_steps = 0
        report = None if self._reporter is None else self._reporter(time.perf_counter() - started_at)
        started_ids = self._take_started()
        for output in outputs:
            if output.finished:
                self._forget(output.request_id)
        if outputs or started_ids or report is not None:
            self._listener.post(self._listener.on_step, StepNews(outputs, started_ids, report))

    def _tell_idle(self) -> None:
        """Requests have ended beside a step: where none is left, no step will tell so."""
        if not self._engine.has_unfinished:
            self._listener.post(self._listener.on_idle)

    def _take_started(self) -> list[str]:
        """Requests that have left the queue since the last step."""
        started_ids = [
            request_id
            for request_id, group in self._unstarted.items()
            if any(sample.request.status is not RequestStatus.WAITING for sample in group.samples)
        ]
        for request_id in started_ids:
            del self._unstarted[request_id]
        return started_ids
