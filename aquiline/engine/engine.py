"""The engine: owns the parts and runs one step after another."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from aquiline.config import EngineConfig
from aquiline.engine.cache import BlockCache
from aquiline.engine.commit import AcceptedRun, CommittedRequest, Committer
from aquiline.engine.consistency import CheckedState, ConsistencyChecker
from aquiline.engine.device_state import DeviceState
from aquiline.engine.draft import Drafter, grower_for
from aquiline.engine.feature_store import FeatureStore
from aquiline.engine.finish import abort
from aquiline.engine.forecast_tally import ForecastTally
from aquiline.engine.grammar import GrammarCompiler, VocabularyFactory
from aquiline.engine.guidance import Guidance
from aquiline.engine.host_view import accepted_runs, step_facts, tree_traces
from aquiline.engine.inputs import InputBuilder, StepLayout
from aquiline.engine.kv_pool import KVPool, MemoryKind
from aquiline.engine.lookup_native import new_lookup
from aquiline.engine.lookup_policy import LookupPolicy
from aquiline.engine.outputs import Sample, SampleGroup
from aquiline.engine.own_shapes import OwnShapes
from aquiline.engine.plan import StepPlanner
from aquiline.engine.planner_choice import bounds_of, planner_for
from aquiline.engine.prompt_logprobs import record_prompt_logprobs
from aquiline.engine.request_limits import RequestLimits, check_token_ids
from aquiline.engine.sample import Accepted, Sampler
from aquiline.engine.sampling_inputs import SamplingState
from aquiline.engine.schedule import ScheduledBatch
from aquiline.engine.scheduler import Scheduler
from aquiline.engine.sizing import DTYPES, KV_DTYPES, EngineSizes
from aquiline.engine.stats import PhaseClock
from aquiline.engine.step_report import StepObserver
from aquiline.engine.stream import TextStream
from aquiline.engine.target_runner import NativeRunner, runner_for
from aquiline.engine.trace import TreeTrace
from aquiline.engine.tree_merger import TreeMerger
from aquiline.engine.verify import Verified, Verifier
from aquiline.errors import InvalidParameterError
from aquiline.models.interfaces import DraftModel, TargetModel
from aquiline.request import MAX_SEED, Request, RequestOutput, SamplingParams
from aquiline.token_bytes import IncrementalDecoder

DecoderFactory = Callable[[Sequence[int], bool], IncrementalDecoder]


@dataclass(frozen=True)
class EngineModels:
    """The models of an engine.

    Attributes:
        new_decoder: makes the text decoder of one output from its prompt's ids and `skip_special_tokens`.
        eos_token_ids: ids that end an answer.
        new_vocabulary: lists the bytes of every token, empty for those that stand for no text; None: no request can be
            guided.
    """

    target: TargetModel
    draft: DraftModel | None
    new_decoder: DecoderFactory
    eos_token_ids: frozenset[int]
    new_vocabulary: VocabularyFactory | None = None


class Engine:
    """Serves requests step by step.

    Args:
        on_trace: called with every drawing request's tree after each step, when all of the step is done: it may add
            and abort requests. None costs nothing.
        planner: decides how much every step speculates; None: the one that `config` asks for, on generic costs.

    Raises:
        InvalidParameterError: settings that do not fit the models or each other.
    """

    def __init__(
        self,
        models: EngineModels,
        config: EngineConfig,
        on_trace: Callable[[TreeTrace], None] | None = None,
        planner: StepPlanner | None = None,
    ) -> None:
        target, draft = models.target, models.draft
        speculates = draft is not None and not config.speculative.mode.is_off
        self._draft = draft if speculates else None
        draft_config = self._draft.config if self._draft is not None else None
        vocab_size, limits_of_guides = target.config.vocab_size, config.grammars
        self.grammars: GrammarCompiler | None = None
        if models.new_vocabulary is not None:
            self.grammars = GrammarCompiler(models.new_vocabulary, vocab_size, models.eos_token_ids, limits_of_guides)
        self.guidance = Guidance(self.grammars, vocab_size, target.device, limits_of_guides)
        draft_vocab_size = draft_config.draft_vocab_size if draft_config is not None else None
        bounds = bounds_of(config.speculative, draft_vocab_size or 0, target.device.type == "cpu")
        self._own_shapes = OwnShapes(config.speculative, bounds, draft_vocab_size)
        self.planner = planner or planner_for(config.speculative, bounds, has_draft=speculates)
        guides = self.guidance if self.grammars else None
        lookup = LookupPolicy(config.speculative, draft is not None, self.planner, guides, new_lookup)
        self.sizes = EngineSizes.derive(config, target.config, draft_config, bounds, lookup.max_draft_tokens)
        layout, device = self.sizes.layout, target.device
        self.config = config
        self.on_trace = on_trace
        self.cache = BlockCache(layout.num_blocks, layout.block_size, config.cache.enable_prefix_cache)
        draft_limit = draft_config.layers.max_position if draft_config is not None else None
        limits = RequestLimits(self.sizes.max_model_len, self.cache, draft_limit)
        self.scheduler = Scheduler(config.scheduler, self.cache, self.planner, limits, lookup)
        self._models = models
        self._builder = InputBuilder(layout, device)
        draft_layers = draft_config.layers if draft_config is not None else None
        memory = MemoryKind(DTYPES[config.dtype], device, config.poison_memory)
        self.pool = KVPool(layout, target.config, draft_layers, replace(memory, dtype=KV_DTYPES[config.kv_dtype]))
        self._sampler = Sampler(target.config.vocab_size, config.speculative.acceptance, target.sampling)
        self._runner = runner_for(target, self.pool, self._builder)
        self._verifier = Verifier(self._runner, self._builder)
        self._merger = TreeMerger(device, isinstance(self._runner, NativeRunner))
        sampling = SamplingState(layout.max_num_seqs, target.config.vocab_size, device)
        self.features: FeatureStore | None = None
        self._drafter: Drafter | None = None
        if self._draft is not None:
            self.features = FeatureStore(layout.num_blocks, layout.block_size, self._draft.config.feature_size, memory)
            grower = grower_for(self._draft, self.pool, self.features, self._sampler, self._builder)
            self._drafter = Drafter(grower, self.guidance, sampling.gather)
        self._device = DeviceState(self.pool, self.features, sampling, self.guidance)
        self._checker = ConsistencyChecker(target, self._draft, CheckedState(self.pool, self.features, sampling))
        self._committer = Committer(self.scheduler.max_request_tokens)
        self._groups: dict[str, SampleGroup] = {}
        self._group_of: dict[str, str] = {}
        self._streams: dict[str, TextStream] = {}
        self._num_added = 0
        self.num_steps = 0
        self.clock = PhaseClock()
        self._observer = StepObserver(self.planner, self.clock)

    def compare_forecasts(self) -> ForecastTally:
        """Begin to compare what the planner expects of steps with what they come to, in a new tally."""
        self._observer.tally = ForecastTally()
        return self._observer.tally

    @property
    def has_unfinished(self) -> bool:
        return self.scheduler.has_unfinished

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        priority: int = 0,
    ) -> SampleGroup:
        """Queue a prompt; its outputs come from later steps.

        Args:
            priority: lower runs first.

        Returns:
            Its samples, whose `output()` tells at any time, and also after an abort, what has been committed.

        Raises:
            PromptError: empty, longer than context or cache allow, or with ids the model does not have.
            InvalidParameterError: parameters that name ids the model does not have, a guide that cannot be followed, a
                tree that the engine cannot grow, a priority that is not an integer, or a request id in use.
        """
        if request_id in self._groups:
            raise InvalidParameterError(f"request_id {request_id!r} is in use; choose another")
        if not isinstance(priority, int):
            raise InvalidParameterError(f"priority is {priority!r}; it must be an integer")
        params.check_vocab(self._models.target.config.vocab_size)
        check_token_ids(prompt_token_ids, self._models.target.config.vocab_size)
        speculation = self._own_shapes.settle(params)
        grammar = self.guidance.grammar_of(params)
        seed = params.seed if params.seed is not None else secrets.randbelow(MAX_SEED + 1)
        samples = []
        for index in range(params.n):
            request = Request(
                request_id=request_id if params.n == 1 else f"{request_id}/{index}",
                prompt_token_ids=tuple(prompt_token_ids),
                params=params,
                seed=seed,
                eos_token_ids=self._models.eos_token_ids,
                sample_index=index,
                priority=priority,
                arrival=self._num_added + index,
                speculate=speculation.drafts,
                looks_up=speculation.looks_up,
                own_shape=speculation.own_shape,
            )
            decoder = self._models.new_decoder(request.prompt_token_ids, params.skip_special_tokens)
            samples.append(Sample(request, TextStream(decoder, params.stop, params.include_stop_str_in_output)))
        group = SampleGroup(request_id, prompt, tuple(samples))
        self._queue(group)
        self.guidance.register([sample.request for sample in samples], grammar)
        return group

    def _queue(self, group: SampleGroup) -> None:
        for sample in group.samples:
            if sample.request.request_id in self._group_of:
                raise InvalidParameterError(f"request_id {sample.request.request_id!r} is in use; choose another")
        for sample in group.samples:
            self.scheduler.add(sample.request)
        self._num_added += len(group.samples)
        self._groups[group.request_id] = group
        for sample in group.samples:
            self._group_of[sample.request.request_id] = group.request_id
            self._streams[sample.request.request_id] = sample.stream

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request where it stands and free all it holds; None when it is unknown or has ended."""
        group = self._groups.get(request_id)
        if group is None:
            return None
        for sample in group.samples:
            abort(sample.request, sample.stream)
            self._device.release(sample.request)
            self.scheduler.finish(sample.request)
        return self._close(group)

    @torch.inference_mode()
    def step(self) -> list[RequestOutput]:
        """Run one step; returns the outputs that grew or ended, in the order of the step.

        Raises:
            Exception: whatever went wrong inside. Every request of the step is then aborted and forgotten, for its
                states may not agree any more; the other requests go on with the next step.
        """
        started = time.perf_counter()
        self.clock.start()
        batch = self.scheduler.schedule()
        if not batch.requests:
            return []
        with self._all_or_none(batch):
            step = StepLayout.of(batch, batch.tree.num_draft_tokens + 1)
            self._place(batch.preempted, step)
            sampling = self._device.sampling_inputs(step)
            self._observer.start(step)
            self.clock.lap("schedule", self.guidance.take_seconds())
            grown = None if self._drafter is None else self._drafter.propose(step, sampling)
            tree = self._merger.merge(step, grown)
            step = step.with_tree(tree)
            self.clock.lap("draft", self.guidance.take_seconds())
            verified = self._verifier.run(step, tree, sampling)
            self.clock.lap("verify")
            accepted = None
            if verified.rows is not None:
                rows = self.guidance.guided(step, verified.tree, verified.rows)
                self.clock.lap("grammar", self.guidance.take_seconds())
                accepted = self._sampler.accept(sampling, verified.tree, rows)
                self._runner.move_accepted(step, accepted)
            self.clock.lap("sample", self.guidance.take_seconds())
            runs = {} if accepted is None else accepted_runs(step, verified.tree, accepted)
            committed = self._commit(step, verified, runs)
            traces = self._traces(step, verified, accepted, committed) if accepted and self.on_trace else []
            if self.config.check_consistency:
                self.check_consistency()
            outputs = self._deliver(committed, time.perf_counter() - started)
            self.clock.lap("commit", self.guidance.take_seconds())
            self._observer.finish(step, batch.tree, verified.tree, runs)
            self.clock.finish(lambda: step_facts(self.num_steps - 1, step, runs, committed, self.scheduler.num_waiting))
            for trace in traces:
                if self.on_trace is not None:
                    self.on_trace(trace)
            return outputs

    @contextmanager
    def _all_or_none(self, batch: ScheduledBatch) -> Iterator[None]:
        """Abort every request of a step that fails.

        Their blocks stay findable only as far as they were final before the step: features that the step did not keep
        would be missing from later ones.
        """
        requests = [scheduled.request for scheduled in batch.requests]
        final_rows = [(request.num_computed_tokens, request.num_draft_rows) for request in requests]
        try:
            yield
        except BaseException:
            for request in batch.preempted:
                self._device.release(request)
            for request, (num_computed_tokens, num_draft_rows) in zip(requests, final_rows, strict=True):
                request.num_computed_tokens, request.num_draft_rows = num_computed_tokens, num_draft_rows
            ids = [request.request_id for request in requests]
            for group_id in dict.fromkeys(self._group_of[i] for i in ids if i in self._group_of):
                self.abort(group_id)
            raise

    def check_consistency(self) -> None:
        """Recompute every running request from scratch and compare all its states (slow).

        Raises:
            ConsistencyError: a state does not describe the committed history.
        """
        self.scheduler.check_integrity()
        running = [request for request in self.scheduler.running if not request.is_finished]
        self._checker.check(running)
        self.guidance.check(running)

    def _place(self, preempted: Sequence[Request], step: StepLayout) -> None:
        for request in preempted:
            self._device.release(request)
        for scheduled in step.ordered:
            self._device.admit(scheduled.request)

    def _commit(self, step: StepLayout, verified: Verified, runs: Mapping[str, AcceptedRun]) -> list[CommittedRequest]:
        record_prompt_logprobs(step, verified.states, self._models.target, self._builder)
        committed = self._committer.commit(step.ordered, runs, self._streams)
        self._device.commit(step, verified.states, committed)
        for item in committed:
            self.cache.publish(item.request)
        return committed

    def _traces(
        self, step: StepLayout, verified: Verified, accepted: Accepted, committed: Sequence[CommittedRequest]
    ) -> list[TreeTrace]:
        token_ids = {item.request.request_id: item.token_ids for item in committed}
        return tree_traces(self.num_steps, step, verified.tree, accepted, token_ids)

    def _deliver(self, committed: Sequence[CommittedRequest], seconds: float) -> list[RequestOutput]:
        self.num_steps += 1
        grown = []
        for item in committed:
            request = item.request
            request.step_seconds += seconds
            self.guidance.bound(request, self._streams[request.request_id])
            if request.is_finished:
                self._device.release(request)
                self.scheduler.finish(request)
            group_id = self._group_of[request.request_id]
            if (item.token_ids or request.is_finished) and group_id not in grown:
                grown.append(group_id)
        return [self._close(self._groups[group_id]) for group_id in grown]

    def _close(self, group: SampleGroup) -> RequestOutput:
        """The group's output; a finished group is forgotten."""
        if group.is_finished:
            del self._groups[group.request_id]
            for sample in group.samples:
                del self._group_of[sample.request.request_id]
                del self._streams[sample.request.request_id]
                self.guidance.forget(sample.request.request_id)
        return group.output()
