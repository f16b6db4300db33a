"""CIFAR-10 and CIFAR-100: images of 32 x 32 in colour, from the binary archives."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ..errors import ArgumentError, DataError
from .images import MemoryImages
from .source import Archive, Source, check_labels, read_bytes

SHAPE = (3, 32, 32)
HOME = "from https://www.cs.toronto.edu/~kriz/cifar.html"
TEN = Archive("CIFAR-10", f"cifar-10-binary.tar.gz {HOME}", ("cifar-10-batches-bin", "."))
HUNDRED = Archive("CIFAR-100", f"cifar-100-binary.tar.gz {HOME}", ("cifar-100-binary", "."))
TEN_FILES = {"train": tuple(f"data_batch_{n}.bin" for n in range(1, 6)), "test": ("test_batch.bin",)}
TEN_NAMES = "batches.meta.txt"
HUNDRED_FILES = {"train": ("train.bin",), "test": ("test.bin",)}
HUNDRED_IMAGES = {"train": 50_000, "test": 10_000}
# which of a record's two labels, how many classes, their names
HUNDRED_LABELS = {"coarse": (0, 20, "coarse_label_names.txt"), "fine": (1, 100, "fine_label_names.txt")}


def read_ten(split: str, root: Path) -> MemoryImages:
    *batches, names = TEN.find(root, (*TEN_FILES[split], TEN_NAMES))
    return _images("cifar10", split, batches, _names(names, 10), 1, 0, 10_000)


def read_hundred(split: str, root: Path, *, labels: str = "fine") -> MemoryImages:
    """`labels`: the 100 fine classes or the 20 coarse ones."""
    if labels not in HUNDRED_LABELS:
        raise ArgumentError("labels", labels, "fine or coarse")
    which, count, names_file = HUNDRED_LABELS[labels]
    *batches, names = HUNDRED.find(root, (*HUNDRED_FILES[split], names_file))
    return _images("cifar100", split, batches, _names(names, count), 2, which, HUNDRED_IMAGES[split])


def _images(
    name: str, split: str, files: Sequence[Path], classes: tuple[str, ...], label_bytes: int, which: int, official: int
) -> MemoryImages:
    """Records of `label_bytes` labels, then the red, green and blue planes, row by row; `official` many in a file."""
    images, labels = [], []
    width = label_bytes + int(np.prod(SHAPE))
    for file in files:
        data = read_bytes(file)
        if not data or len(data) % width:
            raise DataError(f"{file}: a whole number of records of {width} bytes was expected, found {len(data)} bytes")
        records = torch.from_numpy(np.frombuffer(data, np.uint8).reshape(-1, width).copy())
        if len(records) != official:
            # cut between two records a file looks whole
            warnings.warn(f"{file} holds {len(records)} images, the official file {official}", stacklevel=4)
        check_labels(file, records[:, which], len(classes))
        images.append(records[:, label_bytes:].reshape(-1, *SHAPE))
        labels.append(records[:, which])
    return MemoryImages(name, split, torch.cat(images), torch.cat(labels), classes)


def _names(file: Path, count: int) -> tuple[str, ...]:
    names = tuple(line.strip() for line in read_bytes(file).decode(errors="replace").splitlines() if line.strip())
    if len(names) != count:
        raise DataError(f"{file}: the names of {count} classes were expected, found {len(names)}")
    return names


CIFAR10 = Source(
    read_ten, tuple(TEN_FILES), 10, SHAPE, 50_000, "files of CIFAR-10",
    found=lambda root: TEN.holds(root, (*TEN_FILES["train"], *TEN_FILES["test"], TEN_NAMES)),
)  # fmt: skip
CIFAR100 = Source(
    read_hundred, tuple(HUNDRED_FILES), 100, SHAPE, 50_000, "files of CIFAR-100",
    found=lambda root: HUNDRED.holds(root, ("train.bin", "test.bin", "fine_label_names.txt")),
)  # fmt: skip
