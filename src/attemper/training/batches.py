"""Batches of images on a device, the next one read while this one is used."""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from ..data.images import Images, MemoryImages

AHEAD = 2


def batches(images: Images, indices: Iterable[Tensor], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """For each tensor of indices the float32 images and their labels. A set in memory is cut where it lives."""
    if isinstance(images, MemoryImages):
        yield from (images.cut(some, device) for some in indices)
        return
    waiting: deque[Future[tuple[Tensor, Tensor]]] = deque()
    with ThreadPoolExecutor(1) as reader:
        coming = iter(indices)
        for some in itertools.islice(coming, AHEAD):
            waiting.append(reader.submit(images.cut, some, device))
        while waiting:
            ready = waiting.popleft().result()
            for some in itertools.islice(coming, 1):
                waiting.append(reader.submit(images.cut, some, device))
            yield ready


def on_device(images: Images, device: torch.device) -> Images:
    """The set itself, moved to the device where it is one that lives in memory."""
    return images.to(device) if isinstance(images, MemoryImages) else images
