"""A network that classifies images: statistics of its data, an architecture, a linear classifier."""

import torch
from torch import Tensor, nn

from ..checks import choices, positive, shape, whole
from ..errors import ArgumentError
from .parts import Body, Standardise, fixed_norm

NORMALISATIONS = ("none", "before-classifier", "logits")


class Classifier(nn.Module):
    """Images (n, channels, height, width), floating point in [0, 1] -> logits (n, classes).

    `standardise` holds mean and std of the channels, so that a saved model carries them. `normalisation` gives the
    classifier's input ("before-classifier") or the logits ("logits") rows of mean 0 and of the 2-norm
    sqrt(features) or sqrt(classes), by nothing learned. `init_scale` multiplies the first weights (no biases, no
    parameters of norms, no class token or positions) of every dense layer and convolution.

    >>> import torch
    >>> from attemper.models.mlp import MLP
    >>> model = Classifier(MLP((1, 8, 8), depth=2, width=16, batch_norm=False), image_shape=(1, 8, 8), classes=10)
    >>> model(torch.rand(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        body: Body,
        *,
        image_shape: tuple[int, int, int],
        classes: int,
        normalisation: str = "none",
        init_scale: float = 1.0,
    ) -> None:
        super().__init__()
        if normalisation not in NORMALISATIONS:
            raise ArgumentError("normalisation", normalisation, choices(NORMALISATIONS))
        self.image_shape = shape(image_shape)
        self.classes = whole("classes", classes, 2)
        self.standardise = Standardise(self.image_shape[0])
        self.body = body
        before, after = normalisation == "before-classifier", normalisation == "logits"
        self.before_classifier = fixed_norm(body.features) if before else nn.Identity()
        self.classifier = nn.Linear(body.features, self.classes)
        self.on_logits = fixed_norm(self.classes) if after else nn.Identity()
        self.apply(body.initialise)
        _scale_weights(self, positive("init_scale", init_scale))

    def forward(self, images: Tensor) -> Tensor:
        if tuple(images.shape[1:]) != self.image_shape or not images.is_floating_point():
            came = f"{str(images.dtype).removeprefix('torch.')} {tuple(images.shape)}"
            accepted = f"(n, {', '.join(map(str, self.image_shape))}) of floating point"
            raise ArgumentError("images", came, accepted)
        features = self.before_classifier(self.body(self.standardise(images)))
        logits: Tensor = self.on_logits(self.classifier(features))
        return logits

    def layers(self) -> list[str]:
        """Names, as in `named_modules()` and in forward order, of the layers to probe; each runs once a forward pass.

        MLP: hidden layers after their ReLU. VGG: convolutions after their ReLU, then, for large images, the two dense
        layers. ResNet: the stem and each block. ViT: each block. The classifier is not among them.
        """
        return [f"body.{name}" for name in self.body.layer_names]


@torch.no_grad()
def _scale_weights(model: nn.Module, scale: float) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.weight.mul_(scale)
