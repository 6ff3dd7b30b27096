"""Which prompts a measurement asks: named workloads, or a file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from aquiline.benchmark.workloads import WORKLOADS, workload
from aquiline.cli.measurement import check_each_once
from aquiline.cli.prompts import read_prompts
from aquiline.errors import InvalidParameterError


def add_prompt_set_options(group: argparse._ArgumentGroup) -> None:
    """Add --workloads and --prompts."""
    group.add_argument(
        "--workloads", metavar="NAME,NAME", help=f"sets of prompts: {', '.join(WORKLOADS)} (default all)"
    )
    group.add_argument("--prompts", metavar="FILE", help="JSONL file instead, as for generate; - is stdin")


def prompt_sets(args: argparse.Namespace) -> dict[str, Sequence[Sequence[Mapping[str, Any]]]]:
    """Conversations by the name of their workload; those of a file are `prompts`.

    Raises:
        UserError: both are given, an unknown name, one given twice, or a file that cannot be read.
    """
    if args.prompts is not None:
        if args.workloads is not None:
            raise InvalidParameterError("--workloads and --prompts are both given; give only one of them")
        return {"prompts": [prompt.messages for prompt in read_prompts([], args.prompts, is_raw=False)]}
    chosen = list(WORKLOADS) if args.workloads is None else args.workloads.split(",")
    check_each_once("--workloads", args.workloads, chosen)
    return {name: workload(name) for name in chosen}
