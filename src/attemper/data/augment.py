"""Random crops and flips of a whole batch."""

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import ArgumentError


def crop_and_flip(
    images: Tensor,
    generator: torch.Generator,
    *,
    padding: int = 4,
    flip: bool = True,
    crop: bool = True,
    batch: int | None = None,
    first: int = 0,
) -> Tensor:
    """Images (n, channels, height, width) -> the same shape: each cut at its own place from `padding` more zeros on
    every side, and mirrored left to right or not.

    The draws come from `generator`, on the CPU, for the whole batch: the same on every device. Where the images are
    those from `first` on in a batch of `batch` that processes share, they get the draws they have in the whole of it.

    >>> images = torch.arange(6.0).view(1, 1, 2, 3)
    >>> crop_and_flip(images, torch.Generator().manual_seed(1), padding=1)
    tensor([[[[0., 2., 1.],
              [0., 5., 4.]]]])
    """
    if images.ndim != 4:
        raise ArgumentError("images", tuple(images.shape), "a shape (n, channels, height, width)")
    if not isinstance(padding, int) or padding < 0:
        raise ArgumentError("padding", padding, "a whole number from 0")
    if generator.device.type != "cpu":
        raise ArgumentError("generator", generator.device, "a generator on the CPU")
    n, channels, height, width = images.shape
    batch = n if batch is None else batch
    if not 0 <= first <= batch - n:
        raise ArgumentError("first", first, f"a place that leaves room for {n} images in a batch of {batch}")
    part = slice(first, first + n)
    rows, columns = torch.arange(height).expand(n, -1), torch.arange(width).expand(n, -1)
    if crop:
        top, left = torch.randint(0, 2 * padding + 1, (2, batch, 1), generator=generator)[:, part]
        images = functional.pad(images, (padding, padding, padding, padding))
        rows, columns = rows + top, columns + left
    if flip:
        mirrored = torch.rand(batch, 1, generator=generator)[part] < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    place = (rows[:, :, None] * images.shape[3] + columns[:, None, :]).view(n, 1, height * width)
    place = place.to(images.device, non_blocking=True).expand(-1, channels, -1)
    return images.flatten(2).gather(2, place).view(n, channels, height, width)
