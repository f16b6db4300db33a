"""VGG (Simonyan and Zisserman, 2014)."""

from torch import Tensor, nn

from .parts import Body, convolution, he_convolution, is_small, scaled

# convolutions between two pools
STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
WIDTHS = (64, 128, 256, 512, 512)
DENSE = 4096


class VGG(Body):
    """Stages of 3x3 convolutions, each followed by a max-pool.

    Small images then give the mean over what is left of them, larger ones go through two dense layers.
    A pool is left out where a side is 1 pixel already.
    """

    def __init__(
        self, image_shape: tuple[int, int, int], depth: int, width_multiplier: float, batch_norm: bool
    ) -> None:
        super().__init__()
        channels, *sides = image_shape
        blocks: list[nn.Module] = []
        pool: list[nn.Module] = []
        for count, width in zip(STAGES[depth], WIDTHS, strict=True):
            width = scaled(width, width_multiplier)
            for _ in range(count):
                blocks.append(nn.Sequential(*pool, *convolution(channels, width, 3, batch_norm=batch_norm, bias=True)))
                channels, pool = width, []
            if min(sides) > 1:
                pool, sides = [nn.MaxPool2d(2)], [side // 2 for side in sides]
        self.blocks = nn.Sequential(*blocks)
        self.layer_names = [f"blocks.{i}" for i in range(len(blocks))]
        self.dense = nn.Sequential()
        if is_small(image_shape):
            self.pool = nn.Sequential(*pool, nn.AdaptiveAvgPool2d(1))
            self.features = channels
        else:
            self.pool = nn.Sequential(*pool, nn.AdaptiveAvgPool2d(7))
            self.features = scaled(DENSE, width_multiplier)
            self.dense.append(nn.Sequential(nn.Linear(49 * channels, self.features), nn.ReLU()))
            self.dense.append(nn.Sequential(nn.Dropout(), nn.Linear(self.features, self.features), nn.ReLU()))
            self.layer_names += ["dense.0", "dense.1"]
        self.dropout = nn.Dropout() if len(self.dense) else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.dropout(self.dense(self.pool(self.blocks(images)).flatten(1)))
        return features

    def initialise(self, module: nn.Module) -> None:
        he_convolution(module)
        # as torchvision has it: small first logits
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
