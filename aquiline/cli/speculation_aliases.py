"""What users of vLLM and SGLang type to speculate, in our words.

vLLM counts draft tokens as we do. SGLang's `--speculative-num-draft-tokens` counts the root too, so one is taken off:

    --speculative-num-steps   --speculative-eagle-topk   --speculative-num-draft-tokens
    3                         1                          4                              chain:3
    5                         4                          17                              dynamic:steps=5,topk=4,nodes=16
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Mapping
from typing import Any

from aquiline.cli.parser import integer
from aquiline.errors import InvalidParameterError
from aquiline.speculation import parse_speculation

VLLM_EAGLE = ("eagle", "eagle3")
VLLM_KEYS = ("method", "model", "num_speculative_tokens", "speculative_token_tree", "draft_tensor_parallel_size")
SGLANG_ALGORITHMS = ("EAGLE", "EAGLE3")
SGLANG_COUNTS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")


def add_alias_options(group: argparse._ArgumentGroup) -> None:
    """Add the options of both engines."""
    group.add_argument("--speculative-config", metavar="JSON", help="as in vLLM: method, model, num_speculative_tokens")
    group.add_argument("--speculative-algorithm", metavar="NAME", help="as in SGLang: EAGLE or EAGLE3")
    group.add_argument("--speculative-draft-model-path", metavar="PATH", help="as in SGLang: the draft")
    group.add_argument("--speculative-num-steps", type=integer, metavar="N", help="as in SGLang: levels of the tree")
    group.add_argument("--speculative-eagle-topk", type=integer, metavar="N", help="as in SGLang: children per node")
    group.add_argument(
        "--speculative-num-draft-tokens", type=integer, metavar="N", help="as in SGLang: nodes, the root counted"
    )


def resolve_aliases(args: argparse.Namespace) -> None:
    """Put what was typed in other engines' words into the options of ours.

    Raises:
        InvalidParameterError: something that is not understood, or that contradicts other options.
    """
    sglang = {name: value for name, value in vars(args).items() if _is_sglang(name) and value is not None}
    if args.speculative_config is None and not sglang:
        return
    if args.speculative_config is not None and sglang:
        raise InvalidParameterError("--speculative-config and SGLang's options both speculate; give one kind of them")
    if hasattr(args, "mode"):
        raise InvalidParameterError("--speculate is given beside another engine's options; give one kind of them")
    values = _from_vllm(args.speculative_config) if args.speculative_config is not None else _from_sglang(sglang)
    if "draft" in values and args.draft not in ("auto", values["draft"]):
        raise InvalidParameterError(f"--draft is {args.draft!r} and the options of another engine name another draft")
    for name, value in values.items():
        if name != "draft" and hasattr(args, name):
            raise InvalidParameterError(f"--{name.replace('_', '-')} is given twice, once in another engine's words")
        setattr(args, name, value)


def _is_sglang(name: str) -> bool:
    return name.startswith("speculative_") and name != "speculative_config"


def _from_vllm(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise InvalidParameterError(f"--speculative-config is {text!r}; it must be a JSON object")
    unknown = [key for key in config if key not in VLLM_KEYS]
    if unknown:
        raise InvalidParameterError(f"--speculative-config has {unknown[0]!r}; {', '.join(VLLM_KEYS)} are understood")
    if config.get("draft_tensor_parallel_size", 1) != 1:
        raise InvalidParameterError("--speculative-config: draft_tensor_parallel_size must be 1; leave it out")
    num_tokens = config.get("num_speculative_tokens")
    if not isinstance(num_tokens, int) or isinstance(num_tokens, bool) or num_tokens < 1:
        raise InvalidParameterError("--speculative-config needs num_speculative_tokens, a positive integer")
    method = config.get("method", "eagle3")
    if method == "ngram":
        return _from_ngram(config, num_tokens)
    if method not in VLLM_EAGLE:
        raise InvalidParameterError(
            f"--speculative-config: method is {method!r}; eagle, eagle3 and ngram are offered here"
        )
    values: dict[str, Any] = {"mode": parse_speculation(_vllm_shape(config, num_tokens))}
    if "model" in config:
        values["draft"] = str(config["model"])
    return values


def _from_ngram(config: Mapping[str, Any], num_tokens: int) -> dict[str, Any]:
    for key in ("model", "speculative_token_tree"):
        if key in config:
            raise InvalidParameterError(f"--speculative-config: {key} does not go with the method ngram; leave it out")
    return {"draft": "none", "lookup": "on", "lookup_tokens": num_tokens}


def _vllm_shape(config: Mapping[str, Any], num_tokens: int) -> str:
    tree = config.get("speculative_token_tree")
    if tree is None:
        return f"chain:{num_tokens}"
    try:
        paths = [tuple(path) for path in ast.literal_eval(tree)]
        spelt = ["".join(map(str, path)) for path in paths]
        is_tree = all(isinstance(rank, int) and 0 <= rank <= 9 for path in paths for rank in path)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        is_tree = False
    if not is_tree or len(paths) != num_tokens:
        raise InvalidParameterError(
            "--speculative-config: speculative_token_tree must be a list of paths of digits as text, as many as"
            " num_speculative_tokens, for example '[(0,), (1,), (0, 0)]'"
        )
    return f"paths:{','.join(spelt)}"


def _from_sglang(given: Mapping[str, Any]) -> dict[str, Any]:
    algorithm = given.get("speculative_algorithm", "EAGLE3")
    if algorithm.upper() not in SGLANG_ALGORITHMS:
        raise InvalidParameterError(f"--speculative-algorithm is {algorithm!r}; EAGLE and EAGLE3 are offered here")
    values: dict[str, Any] = {}
    if "speculative_draft_model_path" in given:
        values["draft"] = given["speculative_draft_model_path"]
    counts = [name for name in SGLANG_COUNTS if name in given]
    if not counts:
        return values
    if len(counts) < len(SGLANG_COUNTS):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in SGLANG_COUNTS)
        raise InvalidParameterError(f"{names} belong together; give all three, or none")
    steps, topk, num_verify_tokens = (given[name] for name in SGLANG_COUNTS)
    if topk != 1:
        mode = f"dynamic:steps={steps},topk={topk},nodes={num_verify_tokens - 1}"
    elif num_verify_tokens == steps + 1:
        mode = f"chain:{steps}"
    else:
        raise InvalidParameterError(
            f"--speculative-num-draft-tokens is {num_verify_tokens}; with --speculative-eagle-topk 1 it is one more"
            f" than --speculative-num-steps, which makes {steps + 1}"
        )
    return values | {"mode": parse_speculation(mode)}
