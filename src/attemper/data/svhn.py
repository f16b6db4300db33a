"""SVHN: house numbers cut into digits of 32 x 32 in colour, in .mat files."""

from pathlib import Path

import numpy as np
import torch

from ..errors import DataError
from .images import MemoryImages
from .mat import read_mat
from .source import Archive, Source

ARCHIVE = Archive(
    "SVHN",
    "the cropped digits (train_32x32.mat, test_32x32.mat, extra_32x32.mat) from http://ufldl.stanford.edu/housenumbers",
    (".", "svhn"),
)
FILES = {split: (f"{split}_32x32.mat",) for split in ("train", "test", "extra")}


def read(split: str, root: Path) -> MemoryImages:
    (file,) = ARCHIVE.find(root, FILES[split])
    arrays = read_mat(file)
    if missing := [name for name in ("X", "y") if name not in arrays]:
        raise DataError(f"{file}: the arrays X and y were expected, {' and '.join(missing)} not found")
    images, labels = arrays["X"], arrays["y"]
    if images.ndim != 4 or images.shape[:3] != (32, 32, 3) or images.dtype != np.uint8:
        raise DataError(
            f"{file}: X of bytes with the shape (32, 32, 3, images) was expected, found {images.dtype} {images.shape}"
        )
    if labels.size != images.shape[3]:
        raise DataError(f"{file}: {images.shape[3]} labels were expected, one an image, found {labels.size}")
    if strange := labels[~np.isin(labels, np.arange(1, 11))].tolist():
        raise DataError(f"{file}: labels from 1 to 10 were expected, found {strange[0]}")
    # 10 stands for the digit 0
    digits = torch.from_numpy(labels.astype(np.int64).ravel() % 10)
    pixels = torch.from_numpy(images.transpose(3, 2, 0, 1).copy())
    return MemoryImages("svhn", split, pixels, digits, tuple("0123456789"))


SVHN = Source(
    read, tuple(FILES), 10, (3, 32, 32), 73_257, "files of SVHN",
    found=lambda root: ARCHIVE.holds(root, FILES["train"] + FILES["test"]),
)  # fmt: skip
