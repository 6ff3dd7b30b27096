"""Log-probabilities of prompt tokens, from the rows a prefill computes anyway.

Worked example, prompt p0 p1 p2 p3 and a chunk that computes rows 1 and 2: row 1 tells about p2, row 2 about p3. Nothing
tells about p0, whose entry is None.
"""

from __future__ import annotations

from aquiline.engine.host_view import token_logprobs
from aquiline.engine.inputs import InputBuilder, StepLayout
from aquiline.kernels.reference.sampling import log_probs_of
from aquiline.models.interfaces import TargetModel
from aquiline.models.llama import TargetStates

ROWS_PER_CHUNK = 64


def record_prompt_logprobs(step: StepLayout, states: TargetStates, model: TargetModel, builder: InputBuilder) -> None:
    """Extend `prompt_logprobs` of every request that asked for them; call before the step is committed.

    Rows that a preempted request computes again are skipped.
    """
    first_rows = step.first_rows
    for scheduled in step.ordered:
        request = scheduled.request
        num_top = request.params.prompt_logprobs
        if num_top is None:
            continue
        if not request.prompt_logprobs:
            request.prompt_logprobs.append(None)
        start = request.num_computed_tokens
        end = min(start + scheduled.num_new_tokens, request.num_prompt_tokens - 1)
        for row in range(max(start, len(request.prompt_logprobs) - 1), end, ROWS_PER_CHUNK):
            rows = range(row, min(row + ROWS_PER_CHUNK, end))
            flat = builder.tensor([first_rows[request.request_id] + position - start for position in rows])
            token_ids = [request.prompt_token_ids[position + 1] for position in rows]
            logits = model.logits(states.hidden_states[flat])
            figures = log_probs_of(logits, builder.tensor(token_ids), num_top)
            request.prompt_logprobs += token_logprobs(figures, 0, token_ids, num_top)
