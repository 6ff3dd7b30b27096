"""What the caller sees of a prompt and its samples."""

from __future__ import annotations

from aquiline.engine.outputs import Sample, SampleGroup
from aquiline.engine.stream import TextStream
from aquiline.request import FinishReason, Request, RequestStatus, SamplingParams, TokenLogprob
from tests.tiny import new_decoder


def make_group(params: SamplingParams) -> SampleGroup:
    """Two samples of the prompt `1 2`, seed 9."""
    samples = []
    for index in range(2):
        request = Request(f"it/{index}", (1, 2), params, seed=9, sample_index=index)
        samples.append(Sample(request, TextStream(new_decoder((1, 2), True), params.stop)))
    return SampleGroup("it", "the prompt", tuple(samples))


def add_token(sample: Sample, token_id: int) -> None:
    sample.request.token_ids.append(token_id)
    sample.stream.push(token_id)


def test_an_output_holds_everything_committed_so_far() -> None:
    group = make_group(SamplingParams(n=2))
    add_token(group.samples[0], 3)
    add_token(group.samples[0], 4)
    add_token(group.samples[1], 5)
    request = group.samples[0].request
    request.num_verify_steps, request.num_draft_tokens, request.num_accepted_draft_tokens = 1, 4, 1
    request.num_cached_tokens = 1
    output = group.output()
    assert (output.request_id, output.prompt, output.prompt_token_ids) == ("it", "the prompt", (1, 2))
    assert (output.seed, output.num_cached_tokens, output.finished) == (9, 1, False)
    assert [sample.index for sample in output.outputs] == [0, 1]
    assert [sample.token_ids for sample in output.outputs] == [(3, 4), (5,)]
    assert [sample.text for sample in output.outputs] == ["de", "f"]
    figures = output.outputs[0].speculation
    assert (figures.num_committed_tokens, figures.acceptance_length, figures.acceptance_rate) == (2, 2.0, 0.25)


def test_an_earlier_output_does_not_change_when_tokens_are_added() -> None:
    group = make_group(SamplingParams(n=2, logprobs=0))
    add_token(group.samples[0], 3)
    before = group.output()
    add_token(group.samples[0], 4)
    group.samples[0].request.output_logprobs.append(TokenLogprob(4, -1.0, 1, ()))
    assert before.outputs[0].token_ids == (3,)
    assert before.outputs[0].logprobs == ()


def test_text_that_may_become_a_stop_string_is_held_back_until_the_end() -> None:
    group = make_group(SamplingParams(n=2, stop=("ex",)))
    add_token(group.samples[0], 3)
    add_token(group.samples[0], 4)
    assert group.output().outputs[0].text == "d"
    group.samples[0].stream.close()
    assert group.output().outputs[0].text == "de"


def test_log_probabilities_appear_only_when_asked_for() -> None:
    for asked in (None, 0):
        output = make_group(SamplingParams(n=2, logprobs=asked, prompt_logprobs=asked)).output()
        assert (output.prompt_logprobs is None) == (asked is None)
        assert (output.outputs[0].logprobs is None) == (asked is None)


def test_a_group_is_finished_when_all_its_samples_are() -> None:
    group = make_group(SamplingParams(n=2))
    for index, sample in enumerate(group.samples):
        sample.request.status = RequestStatus.FINISHED
        sample.request.finish_reason = FinishReason.LENGTH
        assert group.is_finished == (index == 1)
    assert group.output().finished
    assert [sample.finish_reason for sample in group.output().outputs] == [FinishReason.LENGTH] * 2
