"""Training data that the toy target wrote, on disk, and the prompts it answered."""

from __future__ import annotations

import json
from pathlib import Path

from aquiline.request import SamplingParams
from aquiline.training.examples import TrainingExample, shard_path, write_shard
from tests.training.toy_models import open_toy

QUESTIONS = {"birds": "The eagle?", "numbers": "12 34"}
MAX_TOKENS = 16


def write_toy_data(toys: Path) -> Path:
    """`data` and `prompts.jsonl` in the folder of the toys: the target's own answers to a few questions.

    A head that learns them by heart is accepted to full depth on the same questions.
    """
    lines = [json.dumps({"prompt": text, "category": name}) for name, text in QUESTIONS.items()]
    (toys / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    llm = open_toy(toys, "off", None)
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    examples = []
    for output in llm.chat([[{"role": "user", "content": text}] for text in QUESTIONS.values()], params):
        answer = output.outputs[0].token_ids
        is_answer = (False,) * len(output.prompt_token_ids) + (True,) * len(answer)
        examples.append(TrainingExample((*output.prompt_token_ids, *answer), is_answer))
    (toys / "data").mkdir()
    write_shard(shard_path(toys / "data", 0), examples, range(len(examples)))
    return toys
