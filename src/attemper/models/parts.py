"""What several architectures are made of."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..errors import ArgumentError

LEAST_STD = 1e-3
SMALL = 64


class Body(nn.Module):
    """An architecture without its classifier: images (n, channels, height, width) -> (n, features).

    `layer_names` are the modules worth probing, in forward order, each of which runs once a forward pass.
    """

    features: int
    layer_names: list[str]

    def initialise(self, module: nn.Module) -> None:
        """Gives one module, of the body or the classifier, its first weights; here those torch gave it are kept."""


class Standardise(nn.Module):
    """Images (n, channels, height, width) -> (images - mean) / std, channel by channel; 0 and 1 until they are set.

    >>> import torch
    >>> standardise = Standardise(1)
    >>> standardise.set([0.5], [0.25])
    >>> standardise(torch.ones(1, 1, 1, 2))
    tensor([[[[2., 2.]]]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("std", torch.ones(channels, 1, 1))

    def set(self, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> None:
        """Mean and standard deviation of each channel; an std below 0.001, as of a constant channel, becomes 0.001."""
        mean, std = self._channels("mean", mean), self._channels("std", std)
        if (std < 0).any():
            raise ArgumentError("std", std.tolist(), "numbers from 0")
        self.mean.copy_(mean.view_as(self.mean))
        self.std.copy_(std.clamp_min(LEAST_STD).view_as(self.std))

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean).div_(self.std)

    def _channels(self, name: str, values: Sequence[float] | Tensor) -> Tensor:
        try:
            numbers = torch.as_tensor(values, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            numbers = torch.tensor(torch.nan)
        if numbers.numel() != len(self.mean) or not numbers.isfinite().all():
            raise ArgumentError(name, values, f"{len(self.mean)} finite numbers, one a channel,")
        return numbers.detach()


def fixed_norm(features: int) -> nn.LayerNorm:
    """(n, features) -> rows of mean 0 and 2-norm sqrt(features). It learns nothing: a learned gain would undo it."""
    # torch's eps of 1e-5 is more than the variance of an untrained network's logits
    return nn.LayerNorm(features, eps=1e-12, elementwise_affine=False)


def convolution(
    channels: int, features: int, size: int, *, stride: int = 1, batch_norm: bool, bias: bool, relu: bool = True
) -> list[nn.Module]:
    """A convolution that keeps the sides (divided by stride), and what follows it."""
    parts: list[nn.Module] = [nn.Conv2d(channels, features, size, stride, size // 2, bias=bias)]
    if batch_norm:
        parts.append(nn.BatchNorm2d(features))
    return [*parts, nn.ReLU()] if relu else parts


def he_convolution(module: nn.Module) -> None:
    """He et al.'s weights over the outputs, which keep the gradient's variance through ReLUs, and no bias."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def scaled(width: int, multiplier: float) -> int:
    """A width times a multiplier, at least 1."""
    return max(1, round(width * multiplier))


def is_small(image_shape: tuple[int, int, int]) -> bool:
    """Whether images take the CIFAR form of an architecture (both sides up to 64), not the ImageNet form."""
    return max(image_shape[1:]) <= SMALL
