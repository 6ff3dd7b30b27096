"""Work for tiny engines: jobs, the answers they give, and what must be left when all are done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import torch

from aquiline.engine.engine import Engine
from aquiline.engine.schedule import ScheduledBatch
from aquiline.models.eagle import EagleModel
from aquiline.models.llama import LlamaModel
from aquiline.request import FinishReason, Request, RequestOutput, SamplingParams, TokenLogprob
from tests.tiny import EOS, TinySettings, TokenChooser, tiny_draft, tiny_eagle_config, tiny_engine, tiny_target

DRAFT_KINDS = ("eagle3", "eagle3_two_layers", "eagle1")
END_TOKENS = (EOS, 7)


@dataclass(frozen=True)
class TinyModels:
    """A target and its draft; engines never change them, so tests share them."""

    target: LlamaModel
    draft: EagleModel


@cache
def tiny_models(kind: str = "eagle3") -> TinyModels:
    """One of `DRAFT_KINDS`."""
    if kind == "eagle1":
        target = tiny_target()
        return TinyModels(target, tiny_draft(target, tiny_eagle_config(target.config, "eagle1")))
    target = tiny_target(aux_layer_ids=(0, 1, 3))
    config = tiny_eagle_config(target.config)
    if kind == "eagle3_two_layers":
        config = replace(config, layers=replace(config.layers, num_layers=2))
    return TinyModels(target, tiny_draft(target, config))


def make_engine(settings: TinySettings, kind: str = "eagle3") -> Engine:
    """An engine with two end-of-sequence ids, so that answers end in more ways."""
    models = tiny_models(kind)
    return tiny_engine(settings, models.target, models.draft, END_TOKENS)


@dataclass(frozen=True)
class Job:
    """A prompt, and when it comes and goes.

    Attributes:
        speculate: False turns speculation off, whatever `params` say.
        arrival, abort: number of steps the engine has run by then; abort None never comes.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    speculate: bool = True
    arrival: int = 0
    abort: int | None = None

    @property
    def asked(self) -> SamplingParams:
        """What the engine is asked."""
        return self.params if self.speculate else replace(self.params, speculation="off")

    @property
    def max_tokens(self) -> int:
        """Most tokens, prompt and output."""
        assert self.params.max_tokens is not None
        return len(self.prompt) + self.params.max_tokens


@dataclass(frozen=True)
class Answer:
    """Everything about one sample that speculation must not change."""

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] | None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None


def answers(output: RequestOutput) -> list[Answer]:
    """One answer per sample."""
    return [
        Answer(
            sample.token_ids,
            sample.text,
            sample.logprobs,
            output.prompt_logprobs,
            sample.finish_reason,
            sample.stop_reason,
        )
        for sample in output.outputs
    ]


def run_jobs(engine: Engine, jobs: Sequence[Job]) -> dict[str, RequestOutput]:
    """Run all jobs, job i under the id `str(i)`; the last output of each that gave one."""
    outputs: dict[str, RequestOutput] = {}
    last_event = max(max(job.arrival, job.abort or 0) for job in jobs)
    for step in range(10_000):
        for index, job in enumerate(jobs):
            if job.arrival == step:
                engine.add_request(str(index), job.prompt, job.asked, priority=job.priority)
            if job.abort == step:
                aborted = engine.abort(str(index))
                if aborted is not None:
                    outputs[str(index)] = aborted
        if engine.has_unfinished:
            for output in engine.step():
                outputs[output.request_id] = output
        elif step >= last_event:
            return outputs
        engine.scheduler.check_integrity()
    raise AssertionError("the engine does not come to an end")


def watch_preemptions(engine: Engine) -> set[str]:
    """A set that fills with the ids of preempted requests."""
    preempted: set[str] = set()
    schedule = engine.scheduler.schedule

    def watched() -> ScheduledBatch:
        batch = schedule()
        preempted.update(request.request_id for request in batch.preempted)
        return batch

    engine.scheduler.schedule = watched  # type: ignore[method-assign]
    return preempted


def plain_answers(job: Job, kind: str = "eagle3", max_model_len: int | None = None) -> list[Answer]:
    """What an engine without speculation gives when it has nothing else to do."""
    engine = make_engine(TinySettings(max_num_batched_tokens=256, max_model_len=max_model_len), kind)
    outputs = run_jobs(engine, [replace(job, speculate=False, arrival=0, abort=None)])
    return answers(outputs["0"])


def assert_nothing_left(engine: Engine) -> None:
    """Every block, device row, table and dictionary entry was given back."""
    assert not engine.has_unfinished
    engine.scheduler.check_integrity()
    assert engine.cache.num_free_blocks == engine.cache.num_blocks
    assert engine.scheduler.num_running == 0
    assert engine.scheduler.num_waiting == 0
    assert not engine._groups
    assert not engine._group_of
    assert not engine._streams
    assert not engine._device._rows
    assert engine.features is None or not engine.features._pending
    sampling = engine._device._sampling
    assert all(settings is None for settings in sampling._settings)
    for pool in (sampling._bias, sampling._stop_ids, sampling._output_counts, sampling._prompt_seen):
        assert sorted(pool._free) == list(range(1, pool.table.shape[0]))


@dataclass
class Script:
    """Draft tokens taken from known answers.

    Attributes:
        histories: prompt and output of each request, by request id.
        period: at every position divisible by it the right token comes second instead of first; 0: never.
    """

    histories: Mapping[str, Sequence[int]]
    period: int = 0
    asked_positions: list[int] = field(default_factory=list)

    def chooser(self) -> TokenChooser:
        """For `ScriptedDrafter`; where the right token is not due the draft's own comes."""

        def choose(request: Request, position: int, rank: int, own: int) -> int:
            self.asked_positions.append(position)
            history = self.histories.get(request.request_id, ())
            lucky_rank = 1 if self.period and position % self.period == 0 else 0
            return history[position] if rank == lucky_rank and position < len(history) else own

        return choose


def histories_of(jobs: Sequence[Job], expected: Sequence[Sequence[Answer]]) -> dict[str, list[int]]:
    """Prompt and answer by the request ids that `run_jobs` leads to."""
    histories = {}
    for index, (job, samples) in enumerate(zip(jobs, expected, strict=True)):
        for number, sample in enumerate(samples):
            request_id = str(index) if job.params.n == 1 else f"{index}/{number}"
            histories[request_id] = [*job.prompt, *sample.token_ids]
    return histories


def random_prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    """Token ids without the end-of-sequence id."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, EOS, (length,), generator=generator).tolist())
