"""P10 on the real model: the trainer's draft proposes what the served one proposes, at every depth."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aquiline.config import EngineConfig, SpeculativeConfig
from aquiline.llm import LLM, TreeTrace
from aquiline.model_store import KNOWN_MODELS, cached_path
from aquiline.models.loading import load_draft, open_target
from aquiline.models.tensor_shapes import EMBEDDING, ID_MAP
from aquiline.request import SamplingParams
from aquiline.shipped_drafts import shipped_draft
from aquiline.speculation import parse_speculation
from aquiline.training.examples import TrainingExample
from aquiline.training.labels import TargetLabeller
from aquiline.training.network import DraftNetwork, FrozenWeights
from aquiline.training.packing import make_pack
from aquiline.training.unrolling import unroll
from tests.quickstart_model import IS_ON_DISK, PULL_IT, QUICKSTART_MODEL

pytestmark = [pytest.mark.model, pytest.mark.skipif(not IS_ON_DISK, reason=PULL_IT)]

DEPTH = 4
QUESTION = [{"role": "user", "content": "Explain in a few sentences how a lighthouse works, and who needs one today."}]
GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)


def proposals(llm: LLM, token_ids: tuple[int, ...]) -> list[Tensor]:
    """What the trainer's draft proposes at each depth below every row, -1 where it is not trained; [num_rows] each."""
    folder = shipped_draft(KNOWN_MODELS[QUICKSTART_MODEL].draft)
    assert folder is not None
    draft = load_draft(folder, llm.models.target.config, torch.float32)
    embedding = open_target(cached_path(QUICKSTART_MODEL), torch.float32).tensors[EMBEDDING]
    network = DraftNetwork(draft.config, draft.tensors, FrozenWeights(embedding, embedding), [])
    # All but the first token count as an answer, so that every row is run.
    example = TrainingExample(token_ids, tuple(position > 0 for position in range(len(token_ids))))
    pack = make_pack([example], [0], len(token_ids))
    features = TargetLabeller(llm.models.target, torch.bfloat16).label(pack).features.float()
    weights = network.used_weights()
    found = []
    for step in unroll(network, weights, pack, features, DEPTH):
        best = (step.states.head_inputs @ network.head(weights).T).argmax(dim=-1)
        found.append(torch.full((pack.num_rows,), -1).index_put((step.rows,), draft.tensors[ID_MAP][best]))
    return found


@torch.no_grad()
def test_the_served_draft_proposes_what_the_trainers_does() -> None:
    speculative = SpeculativeConfig(parse_speculation(f"chain:{DEPTH}"))
    config = EngineConfig(backend="cpu", draft_quantization="none", speculative=speculative)
    llm = LLM(QUICKSTART_MODEL, config=config, num_threads=1)
    traces: list[TreeTrace] = []
    (output,) = llm.chat(QUESTION, GREEDY, on_trace=traces.append)
    token_ids = (*output.prompt_token_ids, *output.outputs[0].token_ids)
    expected = proposals(llm, token_ids)
    root = len(output.prompt_token_ids) - 1
    equal: list[bool] = []
    for trace in traces:
        assert trace.tokens[0] == token_ids[root]
        # The trainer feeds the text itself, so depths below a token that was not accepted tell nothing.
        for depth in range(min(len(trace.accepted_nodes) + 1, len(trace.tokens) - 1)):
            proposed = int(expected[depth][root - 1])
            if proposed >= 0:
                equal.append(proposed == trace.tokens[depth + 1])
        root += len(trace.committed_token_ids)
    assert len(equal) >= 40
    assert sum(equal) >= 0.95 * len(equal)
