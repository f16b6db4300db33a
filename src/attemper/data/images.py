"""Labelled images: what every source gives and every training reads."""

import abc
import copy
import functools
import hashlib
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import ArgumentError, DataError

SAMPLE = 2048


class Statistics(NamedTuple):
    """Mean and standard deviation of each channel of images in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class Images(Dataset[tuple[Tensor, int]], abc.ABC):
    """Labelled images of one shape. An item is (float32 image in [0, 1], shape (channels, height, width); int label).

    A source gives `pixels` and `identity`. Labels index `classes`.
    """

    def __init__(
        self, name: str, split: str, labels: Tensor, classes: tuple[str, ...], image_shape: tuple[int, int, int]
    ) -> None:
        if not len(labels):
            raise DataError(f"{name}, split {split!r}: there is no image in it")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= len(classes):
            raise DataError(
                f"{name}, split {split!r}: labels from {low} to {high}, but there are {len(classes)} classes"
            )
        self.name, self.split, self.classes, self.image_shape = name, split, classes, image_shape
        self.labels = labels.to(torch.int64)

    @abc.abstractmethod
    def pixels(self, indices: Tensor) -> Tensor:
        """Indices (n,) -> uint8 images (n, channels, height, width) on the CPU or where the set lives."""

    @abc.abstractmethod
    def identity(self) -> bytes:
        """What tells this set from any other; hashed into `fingerprint`."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        """What a DataLoader asks for where a data set has it: the items of a batch in one go."""
        images, labels = self.batch(indices)
        return list(zip(images, labels.tolist(), strict=True))

    def batch(self, indices: Tensor | Sequence[int], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Indices (n,) -> float32 images (n, channels, height, width) in [0, 1] and int64 labels (n,) on `device`."""
        return self.cut(self._from_zero(indices), device)

    def cut(self, indices: Tensor, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """`batch` for int64 indices from 0 that are known to be right."""
        pixels = self.pixels(indices).to(device)
        return pixels / 255, self.labels.index_select(0, indices.to(self.labels.device)).to(device)

    @functools.cached_property
    def statistics(self) -> Statistics:
        """Of each channel, from all images in memory or a seeded sample of 2048 that are not; exact sums of bytes."""
        seeded = torch.Generator().manual_seed(0)
        some = torch.randperm(len(self), generator=seeded)[:SAMPLE].sort().values
        return channel_statistics(self.pixels(some))

    @functools.cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change when an image, a label or a class name does.

        Of a folder or a set of the hub they know the files alone, by path or row, and their sizes: other bytes of the
        same size go unseen.
        """
        return hashlib.sha256(self.identity()).hexdigest()[:16]

    def _from_zero(self, indices: Tensor | Sequence[int]) -> Tensor:
        """Indices (n,), negative ones from the end -> int64 (n,), all from 0."""
        try:
            found = torch.as_tensor(indices) if len(indices) else torch.zeros(0, dtype=torch.int64)
        except (TypeError, ValueError, RuntimeError):
            found = torch.tensor(torch.nan)
        if found.ndim != 1 or found.dtype == torch.bool or found.is_floating_point() or found.is_complex():
            raise ArgumentError("indices", indices, "a sequence of whole numbers")
        found = found.long()
        if not len(found):
            return found
        low, high = int(found.min()), int(found.max())
        if low < -len(self) or high >= len(self):
            raise IndexError(f"image {low if low < -len(self) else high} of {len(self)}")
        return found if low >= 0 else found % len(self)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.image_shape))
        return f"<{self.name}, {self.split}: {len(self)} images of {shape}, {len(self.classes)} classes>"


class MemoryImages(Images):
    """Images held as one uint8 tensor (n, channels, height, width); `to` moves them, so that batches are cut there.

    >>> import torch
    >>> MemoryImages("two", "train", torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1]), ("a", "b"))
    <two, train: 2 images of 1x4x4, 2 classes>
    """

    def __init__(self, name: str, split: str, images: Tensor, labels: Tensor, classes: tuple[str, ...]) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise ArgumentError("images", f"{images.dtype} {tuple(images.shape)}", "uint8 (n, channels, height, width)")
        if len(images) != len(labels):
            raise ArgumentError("labels", f"{len(labels)} of them", f"one for each of {len(images)} images")
        _, channels, height, width = images.shape
        super().__init__(name, split, labels, classes, (channels, height, width))
        self.images = images

    def to(self, device: torch.device | str) -> "MemoryImages":
        moved = copy.copy(self)
        moved.images, moved.labels = self.images.to(device), self.labels.to(device)
        return moved

    def pixels(self, indices: Tensor) -> Tensor:
        return self.images.index_select(0, indices.to(self.images.device))

    def identity(self) -> bytes:
        return contents(self, [self.images])

    @functools.cached_property
    def statistics(self) -> Statistics:
        return channel_statistics(self.images)


def contents(images: Images, parts: Iterable[Tensor]) -> bytes:
    """A hash of every byte: shape, class names, all the images in parts (n, channels, height, width), labels."""
    digest = hashlib.sha256(repr((images.image_shape, images.classes)).encode())
    for part in itertools.chain(parts, [images.labels]):
        digest.update(part.cpu().contiguous().numpy().data)
    return digest.digest()


def channel_statistics(images: Tensor) -> Statistics:
    """uint8 images (n, channels, height, width) -> mean and standard deviation of each channel of images / 255."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean, std = [], []
    for channel in range(images.shape[1]):
        counts = torch.bincount(images[:, channel].flatten(), minlength=256).double().cpu()
        share = counts / counts.sum()
        mean.append(float(share @ levels))
        std.append(float((share @ (levels - mean[-1]) ** 2).sqrt()))
    return Statistics(tuple(mean), tuple(std))
