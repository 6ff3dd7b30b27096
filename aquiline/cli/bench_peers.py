"""`aquiline bench peers`: this engine and others on the same machine, in turn."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from aquiline.benchmark import llama_cpp, peer_report
from aquiline.benchmark.peers import Outcome, Program, run_rounds
from aquiline.benchmark.provenance import provenance
from aquiline.benchmark.python_engines import OwnModel, Workload, own_program, vllm_program
from aquiline.cli.bench_offline import parse_batch_sizes
from aquiline.cli.model_choice import check_threads
from aquiline.cli.output import draw, write
from aquiline.cli.parser import integer
from aquiline.cli.prompts import read_prompts
from aquiline.config import EngineConfig
from aquiline.errors import InvalidParameterError
from aquiline.model_store import resolve_model
from aquiline.speculation import parse_speculation
from aquiline.tokenizer import Tokenizer

DESCRIPTION = """Decode and prefill with this engine, llama.cpp and vLLM, each alone in a process of its own, in rounds,
and compare what belongs to the same round. Peers are programs that are here already; nothing is fetched for them."""
MAX_ROUNDS = 1000


@dataclass(frozen=True, kw_only=True)
class PeerSettings:
    """A checked `aquiline bench peers` command line."""

    own: OwnModel
    files: tuple[Path, ...]
    workload: Workload
    llama_bench: Path | None
    llama_batched_bench: Path | None
    vllm_python: Path | None
    vllm_model: Path | None
    num_rounds: int
    is_json: bool


def add_command(kinds: argparse._SubParsersAction[Any]) -> None:
    """Add `peers` to the measurements."""
    parser = kinds.add_parser("peers", help="speed beside llama.cpp and vLLM", description=DESCRIPTION)
    own = parser.add_argument_group("this engine")
    own.add_argument(
        "--gguf",
        metavar="FILE",
        action="append",
        required=True,
        help="a model; repeat it for the same model in other quantisations, of which only llama.cpp runs all",
    )
    own.add_argument("--draft", default="auto", metavar="PATH", help="draft of the first file, as for generate")
    own.add_argument("--quantization", default="auto", metavar="KIND", help="of its weights (default auto)")
    own.add_argument(
        "--speculate", default="auto", metavar="SHAPE", help="trees at batch size 1; off measures none (default auto)"
    )
    peers = parser.add_argument_group("peers")
    peers.add_argument("--llama-bench", type=Path, metavar="PATH", help="llama.cpp's program for one request")
    peers.add_argument("--llama-batched-bench", type=Path, metavar="PATH", help="llama.cpp's program for batches")
    peers.add_argument("--vllm-python", type=Path, metavar="PATH", help="an interpreter that can import vllm")
    peers.add_argument("--vllm-model", type=Path, metavar="DIR", help="the model as a Hugging Face folder")
    work = parser.add_argument_group("work")
    work.add_argument("--prompts", metavar="FILE", required=True, help="JSONL file, as for generate; - is stdin")
    work.add_argument("--batch-sizes", metavar="N,N", default="1,16", help="of plain decoding (default 1,16)")
    work.add_argument("--max-tokens", type=integer, default=128, metavar="N", help="output tokens (default 128)")
    work.add_argument("--threads", type=integer, metavar="N", help="of every engine (default: all cores)")
    work.add_argument("--rounds", type=integer, default=3, metavar="N", help="runs of every program (default 3)")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print one JSON object with rows, ratios and provenance")
    parser.set_defaults(run=run)


def check_arguments(args: argparse.Namespace) -> PeerSettings:
    """Turn parsed arguments into settings; the prompts become token ids of the first file.

    Raises:
        UserError: a value outside its range, a program or model that is not there, or nobody to compare with.
    """
    _check_peers(args)
    if not 2 <= args.max_tokens <= EngineConfig.MAX_TOKENS:
        raise InvalidParameterError(f"--max-tokens is {args.max_tokens}")
    return _settings(args)
