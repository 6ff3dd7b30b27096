"""Which model a command runs, and how: the options that every command with a model shares."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aquiline.cli.parser import integer
from aquiline.cli.pull import shown_progress
from aquiline.cli.waiting import loading_shown
from aquiline.config import EngineConfig
from aquiline.errors import InvalidParameterError
from aquiline.model_store import resolve_model
from aquiline.shipped_drafts import resolve_draft

if TYPE_CHECKING:
    from aquiline.llm import LLM

MAX_THREADS = 1024
THREADS_HELP = "CPU threads (default: OMP_NUM_THREADS, or else physical cores)"


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """A checked choice of model.

    Attributes:
        draft: a folder, `auto` (the draft that belongs to the model, if there is one) or `none`.
        num_threads: CPU threads of the kernels; None: one for each core.
        is_json: a program reads the output, so that nothing is drawn.
    """

    model: str
    draft: str
    config: EngineConfig
    num_threads: int | None
    is_json: bool = False


def add_model_options(group: argparse._ArgumentGroup, has_draft: bool = True) -> None:
    """Add --model, --draft (if there can be one) and --threads."""
    group.add_argument(
        "--model",
        default="smollm2-135m",
        metavar="MODEL",
        help="a known name, a GGUF file, a Hugging Face folder or a hub id (default smollm2-135m)",
    )
    if has_draft:
        group.add_argument(
            "--draft",
            default="auto",
            metavar="PATH",
            help="a draft folder, none, or auto: the model's own (default auto)",
        )
    group.add_argument("--threads", type=integer, metavar="N", help=THREADS_HELP)


def check_threads(num_threads: int | None) -> int | None:
    """The number of threads that was typed.

    Raises:
        InvalidParameterError: not positive, or so many that the system may fail to start them.
    """
    if num_threads is not None and not 1 <= num_threads <= MAX_THREADS:
        raise InvalidParameterError(f"--threads is {num_threads}; it must be an integer from 1 to {MAX_THREADS}")
    return num_threads


def check_draft(draft: str) -> None:
    """Look for a draft that is named; one on the hub is fetched.

    Raises:
        UserError: there is none, or it cannot be fetched.
    """
    if draft not in ("auto", "none"):
        resolve_draft(draft)


def open_llm(choice: ModelChoice) -> LLM:
    """Load the model; one that is not on disk is fetched first, and wrong names are noticed before PyTorch loads."""
    check_draft(choice.draft)
    with shown_progress() as show:
        resolve_model(choice.model, show)
    with loading_shown(choice.is_json) as bar:
        from aquiline.llm import LLM

        return LLM(
            choice.model,
            draft=choice.draft,
            config=choice.config,
            num_threads=choice.num_threads,
            on_load_progress=bar,
            on_cost_progress=bar.show_costs,
        )
