"""Multi-layer perceptron."""

import itertools

from torch import Tensor, nn

from .parts import Body


class MLP(Body):
    """`depth` hidden layers of `width` units with ReLU."""

    def __init__(self, image_shape: tuple[int, int, int], depth: int, width: int, batch_norm: bool) -> None:
        super().__init__()
        channels, height, across = image_shape
        widths = [channels * height * across] + [width] * depth
        self.hidden = nn.Sequential(
            *(_hidden(before, after, batch_norm) for before, after in itertools.pairwise(widths))
        )
        self.features = width
        self.layer_names = [f"hidden.{i}" for i in range(depth)]

    def initialise(self, module: nn.Module) -> None:
        # torch's own weights shrink the signal sixfold in power a layer: six layers of them do not learn in 8 epochs
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.hidden(images.flatten(1))
        return features


def _hidden(before: int, after: int, batch_norm: bool) -> nn.Module:
    norm = [nn.BatchNorm1d(after)] if batch_norm else []
    return nn.Sequential(nn.Linear(before, after), *norm, nn.ReLU())
