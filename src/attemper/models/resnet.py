"""Residual networks (He et al., 2015): 18, 34 and 50 of ImageNet, 20, 32, 44 and 56 of CIFAR."""

import functools

from torch import Tensor, nn
from torch.nn import functional

from .parts import Body, convolution, he_convolution, is_small, scaled

# blocks a stage; three stages are the CIFAR family
STAGES = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    20: (3, 3, 3),
    32: (5, 5, 5),
    44: (7, 7, 7),
    56: (9, 9, 9),
}
EXPANSION = {50: 4}


class ResNet(Body):
    """A stem, residual blocks whose width doubles and whose sides halve from stage to stage, the mean over the image.

    The stem is one 3x3 convolution; with 18, 34 or 50 layers and larger images, 7x7 with stride 2 and a max-pool.
    """

    def __init__(
        self, image_shape: tuple[int, int, int], depth: int, width_multiplier: float, batch_norm: bool
    ) -> None:
        super().__init__()
        stages, expansion = STAGES[depth], EXPANSION.get(depth, 1)
        cifar = len(stages) == 3
        width = scaled(16 if cifar else 64, width_multiplier)
        small = cifar or is_small(image_shape)
        size, stride, pool = (3, 1, []) if small else (7, 2, [nn.MaxPool2d(3, 2, 1)])
        stem = convolution(image_shape[0], width, size, stride=stride, batch_norm=batch_norm, bias=not batch_norm)
        self.stem = nn.Sequential(*stem, *pool)
        self.blocks = nn.Sequential()
        channels = width
        for stage, count in enumerate(stages):
            for place in range(count):
                stride = 2 if stage and not place else 1
                block = Residual(channels, width << stage, stride, expansion, cifar, batch_norm)
                self.blocks.append(block)
                channels = (width << stage) * expansion
        self.features = channels
        self.layer_names = ["stem", *(f"blocks.{i}" for i in range(len(self.blocks)))]

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.blocks(self.stem(images)).mean((2, 3))
        return features

    def initialise(self, module: nn.Module) -> None:
        he_convolution(module)


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x)), the branch two convolutions, or with an expansion three around a bottleneck.

    Where the shape changes the shortcut is a 1x1 convolution, or, in the CIFAR family, has no parameters.
    """

    def __init__(self, channels: int, width: int, stride: int, expansion: int, cifar: bool, batch_norm: bool) -> None:
        super().__init__()
        conv = functools.partial(convolution, batch_norm=batch_norm, bias=not batch_norm)
        out = width * expansion
        if expansion == 1:
            branch = [*conv(channels, width, 3, stride=stride), *conv(width, out, 3, relu=False)]
        else:
            branch = [
                *conv(channels, width, 1),
                *conv(width, width, 3, stride=stride),
                *conv(width, out, 1, relu=False),
            ]
        self.branch = nn.Sequential(*branch)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != out:
            projection = conv(channels, out, 1, stride=stride, relu=False)
            self.shortcut = Padded(stride, out - channels) if cifar else nn.Sequential(*projection)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.branch(x) + self.shortcut(x))


class Padded(nn.Module):
    """Every `stride`-th pixel, with `extra` channels of zeros, half of them before and half after."""

    def __init__(self, stride: int, extra: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, extra

    def forward(self, x: Tensor) -> Tensor:
        before = self.extra // 2
        return functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.extra - before))
