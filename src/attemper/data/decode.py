"""Encoded images to tensors of one shape, many at a time."""

import io
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import get_worker_info

from ..checks import whole
from ..errors import ArgumentError, DataError

T = TypeVar("T")
R = TypeVar("R")

MODES = {1: "L", 3: "RGB"}
# what Pillow's readers raise on bytes that are no image, or not all of one
BROKEN = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, Image.DecompressionBombError)


def check_shape(size: int, channels: int) -> tuple[int, int, int]:
    size = whole("size", size)
    if channels not in MODES:
        raise ArgumentError("channels", channels, "1 or 3")
    return channels, size, size


def decode(sources: Sequence[str | bytes], names: Sequence[str], shape: tuple[int, int, int]) -> Tensor:
    """Paths or encoded bytes of n images -> uint8 (n, channels, size, size): shorter side to size, then the centre.

    `names` is what to call each in an error.
    """
    images = torch.empty(len(sources), *shape, dtype=torch.uint8)

    def one(row: int) -> None:
        source = sources[row]
        try:
            with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
                images[row] = to_tensor(_fit(image, MODES[shape[0]], shape[1]))
        except BROKEN as error:
            raise DataError(f"{names[row]} cannot be read as an image: {error}") from error

    in_threads(one, range(len(sources)))
    return images


def to_tensor(image: Image.Image) -> Tensor:
    """An image in mode L or RGB -> uint8 (channels, height, width)."""
    pixels = torch.from_numpy(np.array(image))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)


def in_threads(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    if get_worker_info() is not None:
        # the DataLoader's workers share the cores already
        return [function(item) for item in items]
    # a pool that outlives the call would be dead in the workers that a DataLoader forks
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, items))


def _fit(image: Image.Image, mode: str, size: int) -> Image.Image:
    # a JPEG is then decoded at the least scale that still leaves twice the pixels
    image.draft(mode, (2 * size, 2 * size))
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        # Pillow would clip these to a byte
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"its pixels are of mode {image.mode}, which has no fixed range")
    return ImageOps.fit(image.convert(mode), (size, size), Image.Resampling.BILINEAR)
