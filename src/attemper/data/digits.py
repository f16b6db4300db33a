"""scikit-learn's handwritten digits: 1797 images of 8 x 8."""

import importlib.util

import torch

from ..checks import whole
from ..errors import MissingExtraError
from .images import MemoryImages
from .source import Source


def read(split: str, *, seed: int = 0) -> MemoryImages:
    """Four fifths of each class to train on, the rest to test; `seed` says which."""
    seed = whole("seed", seed, 0)
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "the digits data") from error

    digits = load_digits()
    images = torch.from_numpy(digits.images).mul(255 / 16).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(digits.target).long()
    generator = torch.Generator().manual_seed(seed)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(10):
        members = (labels == label).nonzero().flatten()
        order = torch.randperm(len(members), generator=generator)
        held_out[members[order[: round(len(members) / 5)]]] = True
    chosen = held_out if split == "test" else ~held_out
    return MemoryImages("digits", split, images[chosen], labels[chosen], tuple("0123456789"))


DIGITS = Source(
    read, ("train", "test"), 10, (1, 8, 8), 1438, "in scikit-learn",
    found=lambda root: importlib.util.find_spec("sklearn") is not None,
)  # fmt: skip
