"""Fashion-MNIST: ten kinds of clothing in 28 x 28 pixels, in idx files."""

import math
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from .images import MemoryImages
from .source import Archive, Source, check_labels, read_bytes

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
ARCHIVE = Archive(
    "Fashion-MNIST",
    "the four files, as .gz or unpacked, from https://github.com/zalandoresearch/fashion-mnist",
    (".", "fashion-mnist", "FashionMNIST/raw"),
)
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def read(split: str, root: Path) -> MemoryImages:
    images_file, labels_file = ARCHIVE.find(root, FILES[split])
    images, labels = read_idx(images_file, 3), read_idx(labels_file, 1)
    if images.shape[1:] != (28, 28):
        raise DataError(f"{images_file}: images of 28 x 28 were expected, found {images.shape[1]} x {images.shape[2]}")
    if len(images) != len(labels):
        raise DataError(f"{labels_file}: {len(images)} labels were expected, one an image, found {len(labels)}")
    check_labels(labels_file, labels, len(CLASSES))
    return MemoryImages("fashion-mnist", split, images[:, None], labels, CLASSES)


def read_idx(path: Path, dimensions: int) -> Tensor:
    """The bytes of an idx file with that many dimensions, as a uint8 tensor of the shape in its header."""
    data = read_bytes(path)
    header = 4 + 4 * dimensions
    if len(data) < header:
        raise DataError(f"{path}: a header of {header} bytes was expected, found {len(data)} bytes")
    magic, *shape = struct.unpack_from(f">{1 + dimensions}I", data)
    if magic != 0x800 + dimensions:
        raise DataError(f"{path}: the idx magic number {0x800 + dimensions:#010x} was expected, found {magic:#010x}")
    expected = header + math.prod(shape)
    if len(data) != expected:
        raise DataError(f"{path}: {expected} bytes were expected for {shape} values, found {len(data)} bytes")
    return torch.from_numpy(np.frombuffer(data, np.uint8)[header:].reshape(shape).copy())


FASHION = Source(
    read, tuple(FILES), 10, (1, 28, 28), 60_000, "files of Fashion-MNIST",
    found=lambda root: ARCHIVE.holds(root, FILES["train"] + FILES["test"]),
)  # fmt: skip
