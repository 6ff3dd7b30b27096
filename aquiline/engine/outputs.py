"""From requests to what the caller sees: the n samples of a prompt gathered in one RequestOutput."""

from __future__ import annotations

from dataclasses import dataclass

from aquiline.engine.stream import TextStream
from aquiline.request import CompletionOutput, Request, RequestOutput
from aquiline.speculation_figures import SpeculationFigures


@dataclass(frozen=True, slots=True)
class Sample:
    """One of the n outputs of a prompt."""

    request: Request
    stream: TextStream


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """A prompt and its samples."""

    request_id: str
    prompt: str | None
    samples: tuple[Sample, ...]

    @property
    def is_finished(self) -> bool:
        return all(sample.request.is_finished for sample in self.samples)

    def output(self) -> RequestOutput:
        """Everything committed so far; text only as far as no later token can take it back."""
        first = self.samples[0].request
        wants_prompt = first.params.prompt_logprobs is not None
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=first.prompt_token_ids,
            prompt_logprobs=tuple(first.prompt_logprobs) if wants_prompt else None,
            outputs=tuple(_completion(sample) for sample in self.samples),
            seed=first.seed,
            num_cached_tokens=first.num_cached_tokens,
            finished=self.is_finished,
        )


def _completion(sample: Sample) -> CompletionOutput:
    request = sample.request
    return CompletionOutput(
        index=request.sample_index,
        text=sample.stream.releasable_text,
        token_ids=tuple(request.output_token_ids),
        logprobs=None if request.params.logprobs is None else tuple(request.output_logprobs),
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        speculation=SpeculationFigures(
            num_verify_steps=request.num_verify_steps,
            num_draft_tokens=request.num_draft_tokens,
            num_accepted_draft_tokens=request.num_accepted_draft_tokens,
            num_committed_tokens=request.num_output_tokens,
            step_seconds=request.step_seconds,
            num_lookup_tokens=request.num_lookup_tokens,
            num_accepted_lookup_tokens=request.num_accepted_lookup_tokens,
        ),
    )
