"""What users of other tools type, and which of our options it means."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

# A name without its dashes: the options that it may mean, of which a command has at most the first few.
MEANT: Mapping[str, tuple[str, ...]] = {
    "alias": ("--served-model-name", "--served-model"),
    "b": ("--max-num-batched-tokens",),
    "base-url": ("--url",),
    "batch": ("--max-num-seqs", "--batch-size", "--batch-sizes"),
    "batch-size": ("--max-num-seqs", "--batch-sizes", "--concurrency", "--tokens-per-step"),
    "best-of": ("--n",),
    "bind": ("--host",),
    "c": ("--max-model-len",),
    "cache-type-k": ("--kv-cache-dtype",),
    "cache-type-v": ("--kv-cache-dtype",),
    "chunked-prefill-size": ("--max-num-batched-tokens",),
    "context-length": ("--max-model-len",),
    "ctx-size": ("--max-model-len",),
    "dataset": ("--data", "--workloads"),
    "disable-radix-cache": ("--no-prefix-cache",),
    "draft-model": ("--draft",),
    "epochs": ("--stage",),
    "f": ("--prompts",),
    "file": ("--prompts",),
    "gpu-memory-utilization": ("--kv-cache-gb",),
    "grammar": ("--guided-grammar",),
    "json-schema": ("--guided-json",),
    "kv-cache-size": ("--kv-cache-gb",),
    "learning-rate": ("--stage",),
    "lr": ("--stage",),
    "m": ("--model", "--target", "MODEL"),
    "max-batch-size": ("--max-num-seqs", "--batch-size", "--batch-sizes"),
    "max-concurrency": ("--concurrency", "--max-num-seqs"),
    "max-length": ("--max-model-len",),
    "max-new-tokens": ("--max-tokens",),
    "max-num-seqs": ("--batch-size", "--batch-sizes"),
    "max-output-tokens": ("--max-tokens",),
    "max-prefill-tokens": ("--max-num-batched-tokens",),
    "max-running-requests": ("--max-num-seqs", "--batch-size"),
    "max-seq-len": ("--max-model-len", "--max-length"),
    "md": ("--draft",),
    "mem-fraction-static": ("--kv-cache-gb",),
    "model": ("--target", "MODEL"),
    "model-draft": ("--draft",),
    "model-path": ("--model", "--target", "MODEL"),
    "n": ("--max-tokens",),
    "n-predict": ("--max-tokens",),
    "no-enable-prefix-caching": ("--no-prefix-cache",),
    "np": ("--max-num-seqs", "--batch-size"),
    "num-predict": ("--max-tokens",),
    "num-prompts": ("--num-requests",),
    "num-return-sequences": ("--n",),
    "num-speculative-tokens": ("--speculate",),
    "num-threads": ("--threads",),
    "o": ("--output",),
    "output-dir": ("--output",),
    "output-len": ("--max-tokens",),
    "p": ("--prompt",),
    "page-size": ("--block-size",),
    "parallel": ("--max-num-seqs", "--batch-size"),
    "regex": ("--guided-regex",),
    "repeat-penalty": ("--repetition-penalty",),
    "request-rate": ("--request-rates",),
    "speculative-model": ("--draft",),
    "t": ("--threads",),
    "temp": ("--temperature",),
    "ubatch-size": ("--max-num-batched-tokens",),
}
LEAST_LIKENESS = 0.8


def meant_option(typed: str, options: Collection[str]) -> str | None:
    """The option of a command that an unknown one was probably meant to be; None where nothing is near.

    Args:
        typed: as typed, or as a file of settings has it: `--max_new_tokens=8`, `-np4`, `batch_size`.
        options: of the command, with their dashes; `MODEL` where it takes a model without one.
    """
    name = typed.partition("=")[0].strip("-").replace("_", "-")
    is_letter = typed.startswith("-") and not typed.startswith("--")
    if is_letter:
        name = name.rstrip("0123456789")
    if not name:
        return None
    same, meant = (f"--{name}",), MEANT.get(name, ())
    # `-n` is llama.cpp's number of tokens.
    for option in (*meant, *same) if is_letter else (*same, *meant):
        if option in options:
            return option
    # Of a name that is known nothing here is meant, however like it may look.
    close = [] if meant else difflib.get_close_matches(f"--{name}", options, n=1, cutoff=LEAST_LIKENESS)
    return close[0] if close else None


def meant_key(typed: str, known: Collection[str]) -> str | None:
    """The setting of a file that was probably meant; None: nothing comes near.

    Args:
        typed, known: with underscores or dashes.
    """
    by_option = {f"--{key.replace('_', '-')}": key for key in known}
    option = meant_option(typed, list(by_option))
    return None if option is None else by_option[option]
