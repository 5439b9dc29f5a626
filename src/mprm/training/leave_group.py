"""End what connects the processes of one training."""

from __future__ import annotations


def leave_group() -> None:
    """Leave the group of processes that torchrun started, if there is one.

    A process that ends with the group's threads still running can die of it, after all is written.
    """
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
