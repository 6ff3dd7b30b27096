"""Random trees, sampling parameters and workloads."""

from __future__ import annotations

from hypothesis import strategies as st

from aquiline.request import SamplingParams
from tests.engine.workloads import END_TOKENS, Job
from tests.tiny import TinySettings

FIXED_MODES = (
    "off",
    "auto",
    "chain:1",
    "chain:4",
    "tree:3x2x1",
    "tree:4",
    "dynamic:steps=3,topk=2,nodes=6",
    "dynamic:steps=4,topk=2,nodes=7,survival=0.02",
    "dynamic:steps=3,topk=2,nodes=6,survival=0.6",
)

MAX_WIDTH = 10  # a path spells every rank as one digit

Path = tuple[int, ...]


@st.composite
def tree_paths(draw: st.DrawFn, max_nodes: int = 9, max_depth: int = 5) -> list[Path]:
    """Nodes of a static tree in the order they were added; any beginning of the list is a tree too."""
    nodes: list[Path] = [()]
    for _ in range(draw(st.integers(1, max_nodes))):
        widths = {node: sum(child[:-1] == node for child in nodes if child) for node in nodes}
        parent = draw(st.sampled_from([node for node in nodes if len(node) < max_depth and widths[node] < MAX_WIDTH]))
        nodes.append((*parent, widths[parent]))
    return nodes[1:]


def spelt(paths: list[Path]) -> str:
    """The paths as a value of `--speculate`."""
    return "paths:" + ",".join("".join(map(str, path)) for path in paths)


def modes() -> st.SearchStrategy[str]:
    """Every kind of `--speculate` value."""
    return st.sampled_from(FIXED_MODES) | tree_paths().map(spelt)


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    """Every field of SamplingParams, each often at its default."""
    max_tokens = draw(st.integers(1, 12))
    return SamplingParams(
        temperature=draw(st.sampled_from((0.0, 0.6, 1.0, 1.7))),
        top_p=draw(st.sampled_from((1.0, 1.0, 0.9, 0.4))),
        top_k=draw(st.sampled_from((0, 0, 1, 6))),
        min_p=draw(st.sampled_from((0.0, 0.0, 0.1))),
        repetition_penalty=draw(st.sampled_from((1.0, 1.0, 1.4, 0.7))),
        presence_penalty=draw(st.sampled_from((0.0, 0.0, 1.0, -1.0))),
        frequency_penalty=draw(st.sampled_from((0.0, 0.0, 0.5, -0.5))),
        logit_bias=draw(st.sampled_from((None, {5: 3.0, 9: -100.0}, {END_TOKENS[0]: 4.0}))),
        allowed_token_ids=draw(st.sampled_from((None, None, tuple(range(0, 61, 3))))),
        banned_token_ids=draw(st.sampled_from(((), (0, 14)))),
        min_tokens=draw(st.integers(0, min(4, max_tokens))),
        max_tokens=max_tokens,
        stop=draw(st.sampled_from(((), (), ("a",), ("bb", "cd"), ("ee", "e")))),
        include_stop_str_in_output=draw(st.booleans()),
        stop_token_ids=draw(st.sampled_from(((), (), (3, 4, 5)))),
        ignore_eos=draw(st.booleans()),
        skip_special_tokens=draw(st.booleans()),
        seed=draw(st.integers(0, 5)),
        n=draw(st.sampled_from((1, 1, 1, 2))),
        logprobs=draw(st.sampled_from((None, 0, 3))),
        prompt_logprobs=draw(st.sampled_from((None, None, None, 2))),
    )


@st.composite
def workloads(draw: st.DrawFn) -> list[Job]:
    """A few jobs, many with a common beginning, that come at different times; some are aborted."""
    common = draw(st.lists(st.integers(0, 59), min_size=9, max_size=9))
    jobs = []
    for _ in range(draw(st.integers(1, 4))):
        shared = common[: draw(st.integers(0, 9))]
        own = draw(st.lists(st.integers(0, 59), min_size=not shared, max_size=10))
        arrival = draw(st.integers(0, 6))
        jobs.append(
            Job(
                prompt=(*shared, *own),
                params=draw(sampling_params()),
                priority=draw(st.integers(0, 1)),
                speculate=draw(st.sampled_from((True, True, True, False))),
                arrival=arrival,
                abort=draw(st.none() | st.none() | st.integers(arrival, arrival + 8)),
            )
        )
    return jobs


@st.composite
def tiny_settings(draw: st.DrawFn, longest: int) -> TinySettings:
    """Engines of every size whose cache holds at least one request of `longest` tokens."""
    block_size = draw(st.sampled_from((1, 2, 4, 16)))
    fewest = -(-longest // block_size)
    max_num_seqs = draw(st.integers(1, 4))
    return TinySettings(
        speculate=draw(modes()),
        block_size=block_size,
        num_blocks=fewest + draw(st.integers(0, fewest)),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=draw(st.sampled_from((max_num_seqs, max_num_seqs + 3, 12, 64))),
        prefix_cache=draw(st.booleans()),
        check_consistency=True,
    )
