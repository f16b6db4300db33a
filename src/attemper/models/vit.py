"""Vision transformer (Dosovitskiy et al., 2020; the small sizes from Touvron et al., 2020)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..checks import whole
from .parts import Body, is_small

WIDTHS = {"tiny": 192, "small": 384, "base": 768}
DEPTH, HEAD = 12, 64


class ViT(Body):
    """Patches and a class token with learned positions, 12 pre-norm blocks with heads of 64, the normed class token.

    Zeros at the right and the bottom fill up the last patches.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        size: str,
        width_multiplier: float,
        batch_norm: bool,
        patch_size: int | None,
    ) -> None:
        super().__init__()
        channels, height, across = image_shape
        usual = 4 if is_small(image_shape) else 16
        patch = usual if patch_size is None else whole("patch_size", patch_size)
        width = max(1, round(WIDTHS[size] * width_multiplier / HEAD)) * HEAD
        below, right = -height % patch, -across % patch
        tokens = 1 + ((height + below) // patch) * ((across + right) // patch)
        self.padding = nn.ZeroPad2d((0, right, 0, below)) if below or right else nn.Identity()
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, tokens, width))
        nn.init.normal_(self.class_token, std=0.02)
        nn.init.normal_(self.positions, std=0.02)
        self.blocks = nn.Sequential(*(Block(width, batch_norm) for _ in range(DEPTH)))
        self.norm = _norm(width, batch_norm)
        self.features = width
        self.layer_names = [f"blocks.{i}" for i in range(DEPTH)]

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(self.padding(images)).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), patches], 1) + self.positions
        normed: Tensor = self.norm(self.blocks(tokens))
        return normed[:, 0]

    def initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            # usually truncated, but at 100 standard deviations
            nn.init.normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=1 / math.sqrt(module.weight[0].numel()))
            assert module.bias is not None
            nn.init.zeros_(module.bias)


class Block(nn.Module):
    """Tokens (n, tokens, width) -> the same shape: attention, then two dense layers, each added to its input."""

    def __init__(self, width: int, batch_norm: bool) -> None:
        super().__init__()
        self.norm1 = _norm(width, batch_norm)
        self.attention = Attention(width)
        self.norm2 = _norm(width, batch_norm)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.norm1(tokens))
        added: Tensor = tokens + self.mlp(self.norm2(tokens))
        return added


class Attention(nn.Module):
    """Tokens (n, tokens, width) -> the same shape, by heads of 64."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = self.qkv(tokens).unflatten(-1, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class TokenBatchNorm(nn.BatchNorm1d):
    """Batch norm of (n, tokens, width) over images and tokens."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens.flatten(0, 1)).view_as(tokens)


def _norm(width: int, batch_norm: bool) -> nn.Module:
    return TokenBatchNorm(width) if batch_norm else nn.LayerNorm(width, eps=1e-6)
