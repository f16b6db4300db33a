"""The processes that train together: one, or those that torchrun started."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..errors import ArgumentError


@dataclass(frozen=True)
class Processes:
    """This process's rank among `count`; the first leads and writes."""

    rank: int
    count: int

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, items: torch.Tensor) -> torch.Tensor:
        """This process's part of `items` (n, ...)."""
        return items.tensor_split(self.count)[self.rank]

    def wait(self) -> None:
        if self.count > 1:
            torch.distributed.barrier()


@contextlib.contextmanager
def processes(device: torch.device) -> Iterator[Processes]:
    """Joins the processes that torchrun started (nccl on CUDA, gloo elsewhere), unless the caller did already."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        yield Processes(torch.distributed.get_rank(), torch.distributed.get_world_size())
    elif int(os.environ.get("WORLD_SIZE", "1")) > 1:
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        try:
            yield Processes(torch.distributed.get_rank(), torch.distributed.get_world_size())
        finally:
            torch.distributed.destroy_process_group()
    else:
        yield Processes(0, 1)


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """So many CPU threads inside, where a number is given."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose_device(name: str | None) -> torch.device:
    """The device of that name; without one this process's accelerator, or the CPU."""
    if name is None:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is None:
            return torch.device("cpu")
        name = f"{accelerator.type}:{os.environ.get('LOCAL_RANK', '0')}"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
        if device.type == "cuda":
            torch.cuda.set_device(device)  # nccl talks through the current device
    except (RuntimeError, AssertionError) as error:
        raise ArgumentError(
            "device", name, f"a device that torch can use here ({str(error).splitlines()[0]})"
        ) from None
    return device
