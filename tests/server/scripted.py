"""An engine that says what it is told to, in runs of any length: everything around the models is real."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

from aquiline.config import EngineConfig
from aquiline.engine.finish import abort, commit_tokens
from aquiline.engine.outputs import Sample, SampleGroup
from aquiline.engine.stream import TextStream
from aquiline.request import Request, RequestOutput, SamplingParams, TokenLogprob
from aquiline.tokenizer import Tokenizer

MAX_TOKENS = 4096


class ScriptedEngine:
    """Answers every prompt with `script`, then the end of the sequence.

    Attributes:
        script: what it says; sample i says it from its i-th character on.
        max_run: most tokens of a step; how many come is drawn from `seed` anew for every request.
        failure: raised by the next step, once.
        gate: steps wait for it.
        before_step: called by every step.
    """

    def __init__(self, tokenizer: Tokenizer, script: str = "") -> None:
        self._tokenizer = tokenizer
        self._groups: dict[str, SampleGroup] = {}
        self._scripts: dict[str, list[int]] = {}
        self._random = random.Random()
        self.script = script
        self.max_run = 1
        self.seed = 0
        self.failure: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.aborted: list[str] = []
        self.before_step: Callable[[], None] | None = None

    @property
    def has_unfinished(self) -> bool:
        return bool(self._groups)

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        priority: int = 0,
    ) -> SampleGroup:
        self._random = random.Random(self.seed)
        eos = self._tokenizer.eos_token_ids
        samples = []
        for index in range(params.n):
            own_id = f"{request_id}/{index}"
            request = Request(own_id, tuple(prompt_token_ids), params, 0, eos, index)
            if params.prompt_logprobs is not None:
                request.prompt_logprobs = [None, *(logprob_of(token_id) for token_id in prompt_token_ids[1:])]
            decoder = self._tokenizer.new_decoder(prompt_token_ids, params.skip_special_tokens)
            samples.append(Sample(request, TextStream(decoder, params.stop, params.include_stop_str_in_output)))
            self._scripts[own_id] = [*self._tokenizer.encode(self.script[index:]), *sorted(eos)]
        self._groups[request_id] = SampleGroup(request_id, prompt, tuple(samples))
        return self._groups[request_id]

    def abort(self, request_id: str) -> RequestOutput | None:
        group = self._groups.pop(request_id, None)
        if group is None:
            return None
        self.aborted.append(request_id)
        for sample in group.samples:
            abort(sample.request, sample.stream)
        return group.output()

    def step(self) -> list[RequestOutput]:
        self.gate.wait()
        if self.before_step is not None:
            self.before_step()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            for request_id in list(self._groups):
                self.abort(request_id)
            raise failure
        outputs = []
        for request_id, group in list(self._groups.items()):
            for sample in group.samples:
                if not sample.request.is_finished:
                    self._commit(sample)
            outputs.append(group.output())
            if group.is_finished:
                del self._groups[request_id]
        return outputs

    def _commit(self, sample: Sample) -> None:
        request = sample.request
        script = self._scripts[request.request_id]
        start = request.num_output_tokens
        run = script[start : start + self._random.randint(1, self.max_run)]
        committed = commit_tokens(request, sample.stream, run, request.num_prompt_tokens + MAX_TOKENS)
        request.output_logprobs += map(logprob_of, committed.token_ids)
        request.num_verify_steps += 1
        request.num_draft_tokens += len(run)
        request.num_accepted_draft_tokens += len(committed.token_ids) - 1


class ScriptedLLM:
    """What a server needs of a model beside its engine."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.config = EngineConfig()


def logprob_of(token_id: int) -> TokenLogprob:
    """A made-up log-probability that tells tokens apart."""
    return TokenLogprob(token_id, -token_id / 7, 2, ((token_id + 1, -0.5), (token_id, float("-inf"))))
