"""Any data set of images, read through its items."""

import operator
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, DataError
from .images import Images, contents

CHUNK = 256


class ItemImages(Images):
    """The items (image, label) of a map-style `torch.utils.data.Dataset`, or of what is like one.

    An image is a tensor (channels, height, width) of bytes, or of floats in [0, 1], which are rounded to bytes; or a
    PIL image of mode L or RGB. All have one shape. Labels come from the attribute `targets`, else from one pass over
    the items; class names from the attribute `classes`, else they are the numbers from 0.

    >>> ItemImages([(torch.zeros(1, 4, 4), 0), (torch.ones(1, 4, 4), 2)])
    <list, all: 2 images of 1x4x4, 3 classes>
    """

    def __init__(self, dataset: Any) -> None:
        name = type(dataset).__name__
        try:
            first = _item(dataset, 0)[0] if len(dataset) else torch.empty(0, 0, 0)
        except (DataError, TypeError, ValueError, LookupError, NotImplementedError) as error:
            accepted = "a data set of items (image, label), a tensor or PIL image and a whole number,"
            raise ArgumentError("dataset", f"{name} ({error})", accepted) from error
        channels, height, width = first.shape
        labels = _targets(dataset)
        if labels is None:
            labels = torch.tensor([_item(dataset, i)[1] for i in range(len(dataset))])
        given = getattr(dataset, "classes", None)
        classes = given if isinstance(given, list | tuple) else range(int(labels.max()) + 1 if len(labels) else 0)
        super().__init__(name, "all", labels, tuple(map(str, classes)), (channels, height, width))
        self.dataset = dataset

    def pixels(self, indices: Tensor) -> Tensor:
        images = torch.empty(len(indices), *self.image_shape, dtype=torch.uint8)
        for row, index in enumerate(indices.tolist()):
            image, label = _item(self.dataset, index)
            was, found = (self.image_shape, int(self.labels[index])), (tuple(image.shape), label)
            if was != found:
                raise DataError(f"item {index} of {self.name}: shape and label {was} were expected, found {found}")
            images[row] = image
        return images

    def identity(self) -> bytes:
        return contents(self, map(self.pixels, torch.split(torch.arange(len(self)), CHUNK)))


def _item(dataset: Any, index: int) -> tuple[Tensor, int]:
    """The bytes of an image (channels, height, width), and its label."""
    item = dataset[index]
    try:
        image, label = item
        return _pixels(image), operator.index(label)
    except (TypeError, ValueError) as error:
        raise DataError(f"item {index} of {type(dataset).__name__}: {error}") from error


def _targets(dataset: Any) -> Tensor | None:
    """The attribute `targets` where it holds what the items give: a whole number for each."""
    if getattr(dataset, "target_transform", None) is not None:
        return None
    try:
        labels = torch.as_tensor(getattr(dataset, "targets", None))
    except (TypeError, ValueError, RuntimeError):
        return None
    fits = labels.shape == (len(dataset),) and not labels.is_floating_point() and not labels.is_complex()
    return labels if fits else None


def _pixels(image: Any) -> Tensor:
    from PIL import Image

    from .decode import MODES, to_tensor

    if isinstance(image, Image.Image):
        if image.mode not in MODES.values():
            raise ValueError(f"a PIL image of mode L or RGB was expected, found one of mode {image.mode}")
        return to_tensor(image)
    if not isinstance(image, Tensor):
        raise TypeError(f"a tensor or PIL image was expected, found {type(image).__name__}")
    if image.ndim != 3 or not image.numel() or not (image.dtype == torch.uint8 or image.is_floating_point()):
        raise ValueError(
            "an image of bytes or floats of the shape (channels, height, width) was expected, "
            f"found {image.dtype} {tuple(image.shape)}"
        )
    if image.dtype == torch.uint8:
        return image
    levels = image.detach().float().mul(255).round()
    if not (levels.min() >= 0 and levels.max() <= 255):
        raise ValueError(f"numbers in [0, 1] were expected, found {float(image.min()):g} to {float(image.max()):g}")
    return levels.to(torch.uint8)
