"""Data parallelism: the processes that torchrun starts share out the conversations of every step."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed

# The others wait while the first process measures a checkpoint.
LONGEST_WAIT = timedelta(hours=24)


@dataclass(frozen=True)
class Processes:
    """This process among those of a run.

    Attributes:
        rank: of this process, from 0.
        count: number of processes.
    """

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, example_ids: Sequence[int]) -> list[int]:
        """The examples of a step that are this process's."""
        return list(example_ids[self.rank :: self.count])

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace every tensor by its sum over all processes."""
        if self.count == 1:
            return
        for tensor in tensors:
            # NCCL adds up on its own device only.
            needs_device = distributed.get_backend() == "nccl" and tensor.device.type == "cpu"
            shared = tensor.cuda() if needs_device else tensor
            distributed.all_reduce(shared)
            if needs_device:
                tensor.copy_(shared)

    def add_up_gradients(self, parameters: Mapping[str, Tensor]) -> None:
        """Sum gradients over all processes; one that had no rows brings zeros."""
        if self.count == 1:
            return
        for parameter in parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.add_up([parameter.grad for parameter in parameters.values() if parameter.grad is not None])

    def wait(self) -> None:
        """Until all processes are here."""
        if self.count > 1:
            distributed.barrier()


def join_processes(device: torch.device) -> Processes:
    """Join the processes that torchrun started, each with its own CUDA device; alone where it did not."""
    if "WORLD_SIZE" not in os.environ:
        return Processes()
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=LONGEST_WAIT)
    return Processes(distributed.get_rank(), distributed.get_world_size())


def leave_processes() -> None:
    """Give up what `join_processes` set up."""
    if distributed.is_initialized():
        distributed.destroy_process_group()
