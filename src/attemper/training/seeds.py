"""What is random in a training: each draw has a key, and its seed comes from the key alone."""

import functools
import hashlib

import torch
from torch import Tensor


@functools.lru_cache(2)
def permutation(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=generator(seed, "order", epoch))


def seed_device(device: torch.device, seed: int) -> None:
    """What dropout draws from. torch.manual_seed, which seeds every kind of device, takes as long as a small step."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def generator(*key: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(derived(*key))


def derived(*key: int | str) -> int:
    """A seed of its own for every key."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:7])
