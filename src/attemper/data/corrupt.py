"""Common corruptions of images, at five severities."""

import io
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from ..checks import whole
from ..errors import ArgumentError
from .images import Images
from .items import ItemImages

# numbers held at once
CHUNK = 2**22


def noise(images: Tensor, strength: float, keys: Tensor) -> Tensor:
    """Adds Gaussian noise with the standard deviation `strength`."""
    return images + strength * normal(keys, images[0].numel()).view(images.shape)


def blur(images: Tensor, strength: float, keys: Tensor) -> Tensor:
    """Gaussian blur; the deviation grows with the side: twice `strength` pixels at 32, eight times at 224."""
    sigma = strength * (1 + min(images.shape[2:]) / 32)
    return _along_both(images, lambda side: _gaussian(side, sigma))


def contrast(images: Tensor, strength: float, keys: Tensor) -> Tensor:
    """Keeps `strength` of each channel's distance from its mean over the image."""
    mean = images.mean((2, 3), keepdim=True)
    return mean + strength * (images - mean)


def brightness(images: Tensor, strength: float, keys: Tensor) -> Tensor:
    """Adds `strength`."""
    return images + strength


def pixelate(images: Tensor, strength: float, keys: Tensor) -> Tensor:
    """Averages to `strength` of the height and width, then repeats pixels."""

    def there_and_back(side: int) -> Tensor:
        small = max(1, round(strength * side))
        return _areas(small, side)[(torch.arange(side) + 0.5).mul(small / side).long()]

    return _along_both(images, there_and_back)


def rotation(images: Tensor, strength: float, keys: Tensor) -> Tensor:
    """Turns by `strength` degrees, one way or the other; what comes in at the corners is reflected."""
    height, width = images.shape[2:]
    angle = math.radians(strength) * (1 - 2 * (keys & 1)).to(images.dtype)
    sin, cos, zero = angle.sin(), angle.cos(), torch.zeros_like(angle)
    turn = torch.stack([cos, -sin * height / width, zero, sin * width / height, cos, zero], 1).view(-1, 2, 3)
    grid = functional.affine_grid(turn, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def jpeg(images: Tensor, strength: float, keys: Tensor) -> Tensor:
    """Through a JPEG file of quality `strength`."""
    from PIL import Image

    from .decode import MODES, in_threads, to_tensor

    mode = MODES.get(images.shape[1])
    if mode is None:
        raise ArgumentError("channels", images.shape[1], "1 or 3, for jpeg,")

    def through(image: Tensor) -> Tensor:
        file = io.BytesIO()
        array = image[0] if mode == "L" else image.permute(1, 2, 0)
        Image.fromarray(array.numpy()).save(file, "JPEG", quality=int(strength))
        return to_tensor(Image.open(file))

    found = in_threads(through, _to_bytes(images).cpu())
    return torch.stack(found).to(images.device).double().div_(255)


STRENGTHS: dict[str, tuple[Callable[[Tensor, float, Tensor], Tensor], tuple[float, ...]]] = {
    "noise": (noise, (0.04, 0.06, 0.08, 0.10, 0.13)),
    "blur": (blur, (0.25, 0.32, 0.4, 0.5, 0.65)),
    "contrast": (contrast, (0.75, 0.55, 0.4, 0.28, 0.15)),
    "brightness": (brightness, (0.06, 0.12, 0.18, 0.25, 0.33)),
    "pixelate": (pixelate, (0.85, 0.62, 0.5, 0.4, 0.3)),
    "rotation": (rotation, (10, 20, 30, 40, 50)),
    "jpeg": (jpeg, (70, 50, 35, 22, 14)),
}
CORRUPTIONS = tuple(STRENGTHS)


class Corrupted(Images):
    """The images of `inner`, each corrupted in a way that depends on its index and the seed alone."""

    def __init__(self, inner: Images, kind: str, severity: int, seed: int) -> None:
        name = f"{inner.name} with {kind} of severity {severity}"
        super().__init__(name, inner.split, inner.labels, inner.classes, inner.image_shape)
        self.inner, self.kind, self.severity, self.seed = inner, kind, severity, seed

    def pixels(self, indices: Tensor) -> Tensor:
        function, strengths = STRENGTHS[self.kind]
        found = []
        for part in torch.split(indices, max(1, CHUNK // math.prod(self.image_shape))):
            clean = self.inner.pixels(part)
            if len(clean):
                keys = image_keys(part.to(clean.device), self.seed)
                clean = _to_bytes(function(clean.double() / 255, strengths[self.severity - 1], keys))
            found.append(clean)
        return torch.cat(found)

    def identity(self) -> bytes:
        return repr((self.inner.fingerprint, self.kind, self.severity, self.seed)).encode()


def corrupt(dataset: Dataset[Any], kind: str, severity: int = 3, seed: int = 0) -> Images:
    """The images of `dataset` corrupted by `kind`, one of CORRUPTIONS, at a severity from 1 to 5.

    `dataset` is what `load` gives, or any map-style data set of items (image, label): see ItemImages.

    >>> from attemper.data import load
    >>> corrupt(load("digits", "test"), "blur", 2)
    <digits with blur of severity 2, test: 359 images of 1x8x8, 10 classes>
    """
    if kind not in CORRUPTIONS:
        raise ArgumentError("kind", kind, f"one of {', '.join(CORRUPTIONS)}")
    severity, seed = whole("severity", severity, 1, 5), whole("seed", seed, 0)
    return Corrupted(dataset if isinstance(dataset, Images) else ItemImages(dataset), kind, severity, seed)


def image_keys(indices: Tensor, seed: int) -> Tensor:
    """Indices (n,) -> int64 (n,): random bits that depend on index and seed alone."""
    start = _mix(torch.tensor(_signed(seed), device=indices.device))
    return _mix(start + (indices + 1) * STEP)


def normal(keys: Tensor, count: int) -> Tensor:
    """Keys (n,) -> standard normal float64 (n, count): Box and Muller's transform of hashed positions."""
    bits = _mix(keys[:, None] + torch.arange(1, count + 1, device=keys.device) * STEP)
    first, second = (((half & 0xFFFFFFFF).double() + 0.5) / 2**32 for half in (bits >> 32, bits))
    return (-2 * first.log()).sqrt() * (2 * math.pi * second).cos()


def _mix(bits: Tensor) -> Tensor:
    """The finaliser of splitmix64; int64 multiplication wraps, and its right shift must lose the sign."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ _shifted(bits, shift)) * _signed(factor)
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, by: int) -> Tensor:
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


STEP = _signed(0x9E3779B97F4A7C15)


def _along_both(images: Tensor, matrix: Callable[[int], Tensor]) -> Tensor:
    """Applies the matrix for a side's length along the height and along the width."""
    down, across = (matrix(side).to(images) for side in images.shape[2:])
    return down @ images @ across.mT


def _gaussian(side: int, sigma: float) -> Tensor:
    """(side, side): a row's weights; what falls over the border is reflected."""
    radius = min(math.ceil(3 * sigma), side - 1)
    kernel = torch.exp(-0.5 * (torch.arange(-radius, radius + 1, dtype=torch.float64) / sigma) ** 2)
    units = functional.pad(torch.eye(side, dtype=torch.float64)[:, None], (radius, radius), mode="reflect")
    return functional.conv1d(units, (kernel / kernel.sum())[None, None])[:, 0].mT


def _areas(into: int, of: int) -> Tensor:
    """(into, of): the share that each of `of` equal parts of a line has in each of `into` equal parts of it."""
    ours, theirs = (torch.arange(parts + 1, dtype=torch.float64) / parts for parts in (into, of))
    begin = torch.maximum(ours[:-1, None], theirs[:-1])
    end = torch.minimum(ours[1:, None], theirs[1:])
    return (end - begin).clamp(min=0) * into


def _to_bytes(images: Tensor) -> Tensor:
    # a sum's last bits vary with batch and device: a tie goes up, whichever side of the half it came out on
    return images.mul(255).add_(0.5 + 1e-6).floor_().clamp_(0, 255).to(torch.uint8)
