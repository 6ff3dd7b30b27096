"""Guided and free requests with every parameter, coming, going, preempted: each answers as alone and plainly."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from aquiline.guided import GuidedParams
from aquiline.request import FinishReason, RequestOutput, SamplingParams
from tests.engine.guided_work import EOS, GUIDES, VOCAB, VOCABULARY, guided_engine, shared_compiler
from tests.engine.workloads import Job, answers, assert_nothing_left, run_jobs, watch_preemptions
from tests.tiny import TinySettings

ODD_GUIDES = (
    *GUIDES,
    GuidedParams(json_schema={"type": "object", "properties": {"é日": {"const": 1.0}, "": {"enum": [True, [{}]]}}}),
    GuidedParams(json_schema={"type": "object"}, whitespace="any"),
    GuidedParams(regex="(é|日|ab)*1?"),
    GuidedParams(choice=("é", "日本", "a" * 30)),
)
NUM_JOBS = 10


def random_job(choose: random.Random) -> Job:
    guided = choose.choice((*ODD_GUIDES, None))
    max_tokens = choose.randint(1, 24)
    params = SamplingParams(
        temperature=choose.choice((0.0, 0.7, 1.5)),
        top_p=choose.choice((1.0, 0.5)),
        top_k=choose.choice((0, 1, 5)),
        min_p=choose.choice((0.0, 0.2)),
        repetition_penalty=choose.choice((1.0, 1.5, 0.7)),
        presence_penalty=choose.choice((0.0, 1.0)),
        frequency_penalty=choose.choice((0.0, -1.0)),
        logit_bias=choose.choice((None, {VOCABULARY.index(b"{"): -100.0, EOS: 100.0}, {VOCABULARY.index(b"a"): 50.0})),
        banned_token_ids=choose.choice(((), (VOCABULARY.index(b'{"'), EOS))),
        allowed_token_ids=choose.choice((None, None, tuple(range(0, VOCAB, 2)))),
        min_tokens=choose.randint(0, min(6, max_tokens)),
        max_tokens=max_tokens,
        stop=choose.choice(((), ("a",), ('": ', "b1"), ("é",))),
        include_stop_str_in_output=choose.random() < 0.5,
        stop_token_ids=choose.choice(((), (VOCABULARY.index(b"b"),))),
        logprobs=choose.choice((None, 2)),
        n=choose.choice((1, 1, 3)),
        seed=choose.randrange(1000),
        guided=guided,
    )
    return Job(
        prompt=tuple(choose.randrange(VOCAB - 2) for _ in range(choose.randint(1, 6))),
        params=params,
        priority=choose.randint(0, 1),
        arrival=choose.randint(0, 4),
        abort=choose.choice((None, None, None, choose.randint(3, 25))),
    )


def check_legal(job: Job, output: RequestOutput) -> None:
    """No token leaves the grammar, also of answers that were cut, and an answer that ends by itself is complete."""
    if job.params.guided is None:
        return
    for sample in output.outputs:
        matcher = shared_compiler().compile(job.params.guided).matcher()
        assert all(map(matcher.accept, sample.token_ids))
        is_ended = sample.token_ids[-1:] == (EOS,)
        assert matcher.is_terminated == is_ended
        assert not is_ended or sample.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_around_it_a_request_answers_as_alone(seed: int) -> None:
    choose = random.Random(seed)
    jobs = [random_job(choose) for _ in range(NUM_JOBS)]
    ways = random.Random(seed).choices(("auto", "off", "chain:2", "chain:4", "tree:2x1"), k=NUM_JOBS)
    jobs = [replace(job, params=replace(job.params, speculation=way)) for job, way in zip(jobs, ways, strict=True)]
    mode = ("chain:4", "tree:3x2x1", "dynamic:steps=3,topk=2,nodes=6", "auto")[seed]
    settings = TinySettings(mode, block_size=2, num_blocks=22, max_num_seqs=6, check_consistency=seed == 1)
    engine = guided_engine(settings)
    preempted = watch_preemptions(engine)
    outputs = run_jobs(engine, jobs)
    assert preempted or seed > 1  # What comes when does not depend on the clock in the first two modes.
    for index, job in enumerate(jobs):
        output = outputs.get(str(index))
        assert output is not None or job.abort is not None
        if output is None:
            continue
        check_legal(job, output)
        plain = replace(job, params=replace(job.params, speculation="auto"), arrival=0, abort=None)
        alone = run_jobs(guided_engine(TinySettings(num_blocks=400)), [plain])["0"]
        for found, expected in zip(answers(output), answers(alone), strict=True):
            if found.finish_reason is FinishReason.ABORT:
                assert expected.token_ids[: len(found.token_ids)] == found.token_ids
            else:
                assert found == expected
    assert_nothing_left(engine)
