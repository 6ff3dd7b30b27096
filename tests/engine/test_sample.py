from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aquiline.config import AcceptanceRule
from aquiline.engine.sample import Accepted, Sampler
from aquiline.engine.sampling_inputs import SamplingInputs, SamplingState
from aquiline.kernels.reference import accept
from aquiline.kernels.reference.noise import NoiseStream
from aquiline.kernels.reference.sampling import LogitRules, RowPlaces, draw_tokens, process_logits
from aquiline.kernels.sampling_kernels import LogitRows
from aquiline.request import Request, SamplingParams
from tests.engine.toy_decoder import ToyDecoder, first_tokens, many_requests
from tests.kernels.chi_square import REJECTION_LEVEL, histogram, p_value
from tests.kernels.test_accept import WRONG_RULES

NUM_SAMPLES = 20_000
TARGET = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.7, 0.05, 0.05, 0.2], [0.25] * 4]).log()
DRAFT = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.3, 0.3, 0.3, 0.1], [0.2, 0.2, 0.3, 0.3], [0.7, 0.1, 0.1, 0.1]]).log()


RANDOM = LogitRules(temperatures=torch.ones(NUM_SAMPLES))


def joint_counts(tokens: Tensor) -> Tensor:
    """How often each sequence of tokens occurs: [4 ** length]."""
    cells = torch.zeros_like(tokens[:, 0])
    for column in tokens.unbind(1):
        cells = cells * 4 + column
    return histogram(cells, 4 ** tokens.shape[1])


def joint_law(transition: Tensor, first: int, length: int) -> Tensor:
    """Probability of each sequence after `first` when the next token has the law `transition[last]`."""
    law = transition[first]
    for _ in range(length - 1):
        law = (law.unsqueeze(1) * transition.repeat(law.shape[0] // 4, 1)).flatten()
    return law


def transitions(rules: LogitRules) -> Tensor:
    """[4, 4]: the target's law after `rules`, by last token."""
    request = torch.zeros(4, dtype=torch.int64)
    return process_logits(TARGET, rules, RowPlaces(request, request)).softmax(dim=1)


@pytest.mark.parametrize(
    ("acceptance", "branching"),
    [("keyed", ()), ("keyed", (2, 2)), ("multi_round", (1, 1)), ("multi_round", (2, 2)), ("multi_round", (4, 1))],
    ids=["plain", "keyed_2x2", "multi_round_1x1", "multi_round_2x2", "multi_round_4x1"],
)
def test_three_tokens_have_the_targets_joint_law(acceptance: AcceptanceRule, branching: tuple[int, ...]) -> None:
    decoder = ToyDecoder(Sampler(4, acceptance), TARGET, DRAFT, branching)
    tokens = first_tokens(decoder, many_requests(NUM_SAMPLES, RANDOM), first=0, length=3)
    assert p_value(joint_counts(tokens), joint_law(TARGET.exp(), 0, 3)) > REJECTION_LEVEL
    assert p_value(joint_counts(tokens), joint_law(DRAFT.exp(), 0, 3)) < REJECTION_LEVEL


def everywhere(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((NUM_SAMPLES,), value, dtype=dtype)


FILTERS = {
    "temperature": replace(RANDOM, temperatures=everywhere(0.6)),
    "top_k": replace(RANDOM, top_k=everywhere(2, torch.int64)),
    "top_p": replace(RANDOM, top_p=everywhere(0.65, torch.float64)),
    "min_p": replace(RANDOM, log_min_p=everywhere(0.4).log()),
    "all": LogitRules(
        temperatures=everywhere(1.5),
        top_k=everywhere(3, torch.int64),
        top_p=everywhere(0.8, torch.float64),
        log_min_p=everywhere(0.3).log(),
    ),
}


@pytest.mark.parametrize(
    ("acceptance", "case"), [("keyed", "all"), *(("multi_round", case) for case in FILTERS)], ids=str
)
def test_joint_law_with_sampling_parameters(acceptance: AcceptanceRule, case: str) -> None:
    rules = FILTERS[case]
    decoder = ToyDecoder(Sampler(4, acceptance), TARGET, DRAFT, (2, 2))
    tokens = first_tokens(decoder, many_requests(NUM_SAMPLES, rules), first=0, length=2)
    assert p_value(joint_counts(tokens), joint_law(transitions(rules), 0, 2)) > REJECTION_LEVEL
    assert p_value(joint_counts(tokens), joint_law(TARGET.exp(), 0, 2)) < REJECTION_LEVEL


def test_joint_law_with_a_reduced_draft_vocabulary() -> None:
    ids = torch.tensor([3, 1])
    decoder = ToyDecoder(Sampler(4, "multi_round"), TARGET, DRAFT[:, ids], (2, 1), ids)
    tokens = first_tokens(decoder, many_requests(NUM_SAMPLES, RANDOM), first=0, length=3)
    assert p_value(joint_counts(tokens), joint_law(TARGET.exp(), 0, 3)) > REJECTION_LEVEL


@pytest.mark.parametrize("name", WRONG_RULES)
def test_the_joint_law_test_rejects_wrong_rules(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "after_rejection", WRONG_RULES[name][0])
    decoder = ToyDecoder(Sampler(4, "multi_round"), TARGET, DRAFT, (2, 2))
    tokens = first_tokens(decoder, many_requests(NUM_SAMPLES, RANDOM), first=0, length=3)
    assert p_value(joint_counts(tokens), joint_law(TARGET.exp(), 0, 3)) < REJECTION_LEVEL


def test_keyed_tokens_are_the_same_for_every_tree_and_draft() -> None:
    inputs = many_requests(500, LogitRules(temperatures=torch.full((500,), 0.9)))
    plain = first_tokens(ToyDecoder(Sampler(4), TARGET, DRAFT), inputs, first=2, length=8)
    for draft in (DRAFT, TARGET, -5 * TARGET):
        for branching in ((1,), (1, 1, 1), (2, 2), (4, 2), (3, 1, 2)):
            tokens = first_tokens(ToyDecoder(Sampler(4), TARGET, draft, branching), inputs, first=2, length=8)
            assert torch.equal(tokens, plain)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 3.0])
def test_keyed_drafts_from_a_perfect_draft_are_always_accepted(temperature: float) -> None:
    rules = LogitRules(temperatures=torch.full((500,), temperature))
    decoder = ToyDecoder(Sampler(4), TARGET, TARGET, (1, 1, 1))
    step = decoder.step(many_requests(500, rules), torch.arange(500) % 4, torch.full((500,), 2))
    assert step.num_accepted.tolist() == [3] * 500


def test_keyed_acceptance_grows_with_the_tree() -> None:
    inputs = many_requests(2000, LogitRules(temperatures=torch.ones(2000)))
    accepted = []
    for branching in ((1, 1), (2, 1), (2, 2), (3, 2), (3, 3)):
        step = ToyDecoder(Sampler(4), TARGET, DRAFT, branching).step(inputs, inputs.seeds % 4, inputs.prompt_lengths)
        accepted.append(step.num_accepted)
    for smaller, larger in itertools.pairwise(accepted):
        assert bool((larger >= smaller).all())
    assert accepted[-1].sum() > accepted[0].sum()


def test_positions_key_the_noise() -> None:
    """The same request draws the same token whether a position is reached by one step or by two."""
    inputs = many_requests(500, LogitRules(temperatures=torch.ones(500)))
    tree_step = ToyDecoder(Sampler(4), TARGET, TARGET, (1,)).step(
        inputs, torch.zeros(500).long(), torch.tensor([9] * 500)
    )
    plain = ToyDecoder(Sampler(4), TARGET, TARGET)
    first = plain.step(inputs, torch.zeros(500, dtype=torch.int64), torch.tensor([9] * 500))
    second = plain.step(inputs, first.bonus, torch.tensor([10] * 500))
    assert torch.equal(tree_step.token_ids, torch.stack([first.bonus, second.bonus], dim=1))


def make_request(index: int, params: SamplingParams, prompt: tuple[int, ...] = (1, 2, 0), seed: int = 5) -> Request:
    request = Request(f"r{index}", prompt, params, seed=seed, eos_token_ids=frozenset({3}))
    request.row = index
    return request


def generate(decoder: ToyDecoder, requests: list[Request], num_tokens: int) -> list[int]:
    """Decode together until all requests have `num_tokens` output tokens; the accepted draft tokens of every step."""
    state = SamplingState(len(requests), decoder.target.shape[0])
    for request in requests:
        state.add(request)
    accepted_counts = []
    while unfinished := [request for request in requests if request.num_output_tokens < num_tokens]:
        last = torch.tensor([request.token_ids[-1] for request in unfinished])
        positions = torch.tensor([request.num_tokens - 1 for request in unfinished])
        step = decoder.step(state.gather(unfinished), last, positions)
        committed = []
        for request, tokens in zip(unfinished, step.token_ids.tolist(), strict=True):
            room = num_tokens - request.num_output_tokens
            committed.append([token for token in tokens if token >= 0][:room])
            request.token_ids += committed[-1]
        state.append_tokens(unfinished, committed)
        accepted_counts += step.num_accepted.tolist()
    return accepted_counts


WIDE = 11
WIDE_TARGET = torch.randn(WIDE, WIDE, generator=torch.Generator().manual_seed(1)) * 2
WIDE_DRAFT = WIDE_TARGET + torch.randn(WIDE, WIDE, generator=torch.Generator().manual_seed(2))

token_ids = st.integers(0, WIDE - 1)


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    allowed = draw(st.none() | st.sets(token_ids, min_size=2, max_size=8))
    banned = draw(st.sets(token_ids, max_size=3))
    if allowed is not None and not allowed - banned:
        banned = set()
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.4, 1.0, 2.0])),
        top_k=draw(st.sampled_from([0, 1, 4, 50])),
        top_p=draw(st.sampled_from([1.0, 0.8, 0.3])),
        min_p=draw(st.sampled_from([0.0, 0.1])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.4, 0.8])),
        presence_penalty=draw(st.sampled_from([0.0, 1.0, -1.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.6, -2.0, 2.0])),
        logit_bias=draw(st.none() | st.dictionaries(token_ids, st.sampled_from([-100.0, -2.0, 3.0]), max_size=3)),
        allowed_token_ids=None if allowed is None else sorted(allowed),
        banned_token_ids=sorted(banned),
        min_tokens=draw(st.integers(0, 6)),
        stop_token_ids=draw(st.lists(token_ids, max_size=2)),
    )


@settings(deadline=None, max_examples=40)
@given(
    params=st.lists(sampling_params(), min_size=1, max_size=4),
    branching=st.sampled_from([(1,), (1, 1, 1), (2, 2), (3, 1), (2, 2, 1)]),
    seed=st.integers(0, 2**63 - 1),
)
def test_every_parameter_means_the_same_with_any_tree_and_in_any_batch(
    params: list[SamplingParams], branching: tuple[int, ...], seed: int
) -> None:
    together = [make_request(i, p, seed=seed) for i, p in enumerate(params)]
    generate(ToyDecoder(Sampler(WIDE), WIDE_TARGET, WIDE_DRAFT, branching), together, 10)
    for i, p in enumerate(params):
        alone = make_request(0, p, seed=seed)
        generate(ToyDecoder(Sampler(WIDE), WIDE_TARGET, WIDE_DRAFT), [alone], 10)
        assert together[i].token_ids == alone.token_ids


@pytest.mark.parametrize("acceptance", ["keyed", "multi_round"])
def test_penalties_reach_tokens_accepted_in_the_same_step(acceptance: AcceptanceRule) -> None:
    """A frequency penalty above every gap between logits: greedy output must not repeat a token before it has to."""
    cycle = torch.full((5, 5), -1.0)
    cycle[:, 0] = 0.5
    params = SamplingParams(temperature=0.0, frequency_penalty=2.0)
    request = make_request(0, params, prompt=(4,))
    generate(ToyDecoder(Sampler(5, acceptance), cycle, cycle, (2, 1, 1)), [request], 5)
    plain = make_request(0, params, prompt=(4,))
    generate(ToyDecoder(Sampler(5), cycle, cycle), [plain], 5)
    assert request.output_token_ids == plain.output_token_ids == [0, 1, 2, 3, 4]


def test_a_perfect_draft_follows_penalties_bans_and_bias() -> None:
    params = SamplingParams(
        temperature=0.8,
        frequency_penalty=0.7,
        repetition_penalty=1.3,
        banned_token_ids=[2],
        logit_bias={4: 2.0},
        min_tokens=9,
    )
    requests = [make_request(i, params, seed=i) for i in range(30)]
    counts = generate(ToyDecoder(Sampler(WIDE), WIDE_TARGET, WIDE_TARGET, (1, 1, 1)), requests, 8)
    assert counts == [3] * 60


def test_greedy_ignores_the_seed_and_random_does_not() -> None:
    def outputs(temperature: float) -> list[list[int]]:
        requests = [make_request(i, SamplingParams(temperature=temperature), seed=i) for i in range(4)]
        generate(ToyDecoder(Sampler(WIDE), WIDE_TARGET, WIDE_DRAFT, (2, 1)), requests, 8)
        return [request.token_ids for request in requests]

    greedy, random = outputs(0.0), outputs(1.5)
    assert all(tokens == greedy[0] for tokens in greedy)
    assert len({tuple(tokens) for tokens in random}) == 4


def test_samples_of_one_seed_differ_by_their_index() -> None:
    requests = [make_request(i, SamplingParams(temperature=1.5), seed=7) for i in range(2)]
    requests[1].sample_index = 1
    generate(ToyDecoder(Sampler(WIDE), WIDE_TARGET, WIDE_DRAFT, (2,)), requests, 10)
    assert requests[0].token_ids != requests[1].token_ids


def test_multi_round_serves_greedy_and_random_requests_together() -> None:
    params = [SamplingParams(temperature=t) for t in (0.0, 1.0, 0.0, 0.7)]
    together = [make_request(i, p) for i, p in enumerate(params)]
    generate(ToyDecoder(Sampler(WIDE, "multi_round"), WIDE_TARGET, WIDE_DRAFT, (2, 2)), together, 9)
    for i, p in enumerate(params):
        alone = make_request(0, p)
        generate(ToyDecoder(Sampler(WIDE, "multi_round"), WIDE_TARGET, WIDE_DRAFT, (2, 2)), [alone], 9)
        assert together[i].token_ids == alone.token_ids
    plain = make_request(0, params[0])
    generate(ToyDecoder(Sampler(WIDE), WIDE_TARGET, WIDE_DRAFT), [plain], 9)
    assert together[0].token_ids == plain.token_ids


@pytest.mark.parametrize("acceptance", ["keyed", "multi_round"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_accepted_describes_the_walk(acceptance: AcceptanceRule, temperature: float) -> None:
    """`drawn`, `token_ids` and `bonus` agree along the path, and log-probabilities belong to the parents' rows."""
    params = SamplingParams(temperature=temperature, logprobs=2, logit_bias={1: 1.0})
    state = SamplingState(64, WIDE)
    requests = [make_request(i, params, seed=i) for i in range(64)]
    for request in requests:
        state.add(request)
    decoder = ToyDecoder(Sampler(WIDE, acceptance), WIDE_TARGET, WIDE_DRAFT, (2, 2))
    roots = torch.arange(64) % WIDE
    step = decoder.step(state.gather(requests), roots, torch.full((64,), 2))
    assert step.logprobs is not None
    log_probs = step.logprobs.log_probs.view(64, 3)
    top_ids = step.logprobs.top_ids.view(64, 3, 2)
    for i in range(64):
        count = int(step.num_accepted[i])
        tokens = step.token_ids[i].tolist()
        assert tokens[count] == step.bonus[i] and tokens[count + 1 :] == [-1] * (2 - count)
        nodes = [0, *step.nodes[i, :count].tolist()]
        assert step.drawn[i, nodes].tolist() == tokens[: count + 1]
        history = [int(roots[i]), *tokens]
        for place in range(count + 1):
            expected = WIDE_TARGET[history[place]].log_softmax(dim=0)
            assert log_probs[i, place] == pytest.approx(float(expected[tokens[place]]), abs=1e-6)
            assert top_ids[i, place, 0] == expected.argmax()


def test_log_probs_do_not_depend_on_speculation() -> None:
    params = SamplingParams(temperature=1.0, logprobs=0)
    requests = [make_request(i, params, seed=i) for i in range(40)]
    state = SamplingState(40, WIDE)
    for request in requests:
        state.add(request)
    inputs = state.gather(requests)

    def step(branching: tuple[int, ...], last: Tensor, position: int) -> Accepted:
        decoder = ToyDecoder(Sampler(WIDE), WIDE_TARGET, WIDE_TARGET, branching)
        return decoder.step(inputs, last, torch.full((40,), position))

    tree = step((1,), torch.zeros(40, dtype=torch.int64), 2)
    first = step((), torch.zeros(40, dtype=torch.int64), 2)
    second = step((), first.bonus, 3)
    assert tree.logprobs is not None and first.logprobs is not None and second.logprobs is not None
    separate = torch.stack([first.logprobs.log_probs, second.logprobs.log_probs], dim=1)
    assert torch.equal(tree.logprobs.log_probs.view(40, 2), separate)


def test_unused_rows_and_nodes_may_hold_anything() -> None:
    """Padding: NaN logits in rows that no node uses, and a request without draft nodes beside one with them."""
    inputs = many_requests(2, LogitRules(temperatures=torch.ones(2), top_k=torch.tensor([2, 4])))
    logits = torch.cat([TARGET[:3], torch.full((2, 4), torch.nan)])
    rows = LogitRows(
        logits=logits,
        row_to_request=torch.tensor([0, 1, 0, 0, 1]),
        node_rows=torch.tensor([[0, 2], [1, -1]]),
        positions=torch.tensor([5, 5, 6, 0, 0]),
        output_lengths=torch.tensor([2, 2, 3, 0, 0]),
        path_tokens=torch.tensor([[-1], [-1], [2], [-1], [-1]]),
    )
    decoder = ToyDecoder(Sampler(4), TARGET, DRAFT, (1,))
    tree, _ = decoder.grow(inputs, torch.tensor([0, 1]), torch.tensor([4, 4]))
    tree = replace(
        tree, parents=torch.tensor([[-1, 0], [-1, -1]]), is_valid=torch.tensor([[True, True], [True, False]])
    )
    rules: tuple[AcceptanceRule, ...] = ("keyed", "multi_round")
    for acceptance in rules:
        kept = replace(tree, draft_log_probs=DRAFT[tree.tokens])
        step = Sampler(4, acceptance).accept(inputs, kept, rows)
        assert step.nodes[1].tolist() == [-1] and step.num_accepted[1] == 0
        assert step.drawn[1, 1] == -1
        assert int(step.bonus.min()) >= 0 and int(step.bonus.max()) < 4


def test_large_steps_are_cut_into_chunks_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = many_requests(50, LogitRules(temperatures=torch.ones(50), top_p=torch.full((50,), 0.7).double()))
    decoder = ToyDecoder(Sampler(4), TARGET, DRAFT, (2, 2))
    whole = decoder.step(inputs, inputs.seeds % 4, inputs.prompt_lengths)
    monkeypatch.setattr("aquiline.kernels.reference.keyed_step.NUMBERS_PER_CHUNK", 12)
    assert torch.equal(decoder.step(inputs, inputs.seeds % 4, inputs.prompt_lengths).drawn, whole.drawn)


@pytest.mark.parametrize(
    ("acceptance", "streams"),
    [("keyed", {NoiseStream.TARGET}), ("multi_round", set(NoiseStream))],
    ids=["keyed", "multi_round"],
)
def test_each_use_of_noise_has_its_own_stream(
    acceptance: AcceptanceRule, streams: set[NoiseStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    keys = SamplingInputs.keys

    def recording_keys(inputs: SamplingInputs, row_to_request: Tensor, positions: Tensor, stream: int) -> Tensor:
        used.append(stream)
        return keys(inputs, row_to_request, positions, stream)

    monkeypatch.setattr(SamplingInputs, "keys", recording_keys)
    inputs = many_requests(3, LogitRules(temperatures=torch.ones(3)))
    ToyDecoder(Sampler(4, acceptance), TARGET, DRAFT, (2,)).step(inputs, torch.arange(3), inputs.prompt_lengths)
    assert set(used) == streams


def test_multi_round_draws_its_last_token_with_the_key_of_its_position() -> None:
    """A perfect draft: root at position 4, its child at 5, so the last token is drawn for position 6."""
    inputs = many_requests(200, LogitRules(temperatures=torch.ones(200)))
    decoder = ToyDecoder(Sampler(4, "multi_round"), TARGET, TARGET, (1,))
    step = decoder.step(inputs, torch.arange(200) % 4, torch.full((200,), 4))
    assert step.num_accepted.tolist() == [1] * 200
    keys = inputs.keys(torch.arange(200), torch.full((200,), 6), NoiseStream.RESIDUAL)
    expected = draw_tokens(TARGET[step.token_ids[:, 0]], torch.ones(200), keys)
    assert step.bonus.tolist() == expected.tolist()
