import pytest
import torch
from torch import nn

from attemper.models.resnet import Padded, Residual, ResNet


def test_shortcut_of_the_cifar_family():
    x = torch.arange(2 * 3 * 5 * 4, dtype=torch.float32).view(2, 3, 5, 4)
    out = Padded(2, 4)(x)
    assert out.shape == (2, 7, 3, 2)
    assert torch.equal(out[:, 2:5], x[:, :, [0, 2, 4]][..., [0, 2]])
    assert out[:, :2].eq(0).all()
    assert out[:, 5:].eq(0).all()
    assert Padded(2, 3)(x).shape[1] == 6


@pytest.mark.parametrize(
    ("channels", "width", "stride", "expansion", "cifar", "kind"),
    [
        (4, 4, 1, 1, False, nn.Identity),
        (4, 4, 1, 1, True, nn.Identity),
        (4, 8, 2, 1, True, Padded),
        (4, 8, 2, 1, False, nn.Sequential),
        (4, 4, 1, 4, False, nn.Sequential),
        (16, 4, 1, 4, False, nn.Identity),
    ],
)
def test_a_block_adds_its_shortcut(channels, width, stride, expansion, cifar, kind):
    block = Residual(channels, width, stride, expansion, cifar, batch_norm=True)
    assert type(block.shortcut) is kind
    x = torch.randn(3, channels, 7, 6)
    # an empty branch leaves what the shortcut gives
    nn.init.zeros_(block.branch[-1].weight)
    assert torch.equal(block(x), block.shortcut(x).clamp_min(0))
    nn.init.ones_(block.branch[-1].weight)
    torch.testing.assert_close(block(x), (block.branch(x) + block.shortcut(x)).clamp_min(0))
    assert block(x).shape == (3, width * expansion, -(-7 // stride), -(-6 // stride))


@pytest.mark.parametrize(
    ("depth", "sides", "features"), [(18, [8] * 3 + [4] * 2 + [2] * 2 + [1] * 2, 32), (20, None, 4)]
)
def test_stages(depth, sides, features):
    body = ResNet((1, 8, 8), depth, 1 / 16, True)
    images, seen = body.stem(torch.rand(2, 1, 8, 8)), [8]
    for block in body.blocks:
        images = block(images)
        seen.append(images.shape[-1])
    assert seen == (sides or [8] * 4 + [4] * 3 + [2] * 3)
    assert images.shape[1] == body.features == features


@pytest.mark.parametrize("depth", [18, 20, 50])
def test_biases_stand_in_for_batch_norm(depth):
    for batch_norm in (True, False):
        modules = list(ResNet((1, 8, 8), depth, 1 / 16, batch_norm).modules())
        assert any(isinstance(m, nn.BatchNorm2d) for m in modules) is batch_norm
        assert all((m.bias is None) is batch_norm for m in modules if isinstance(m, nn.Conv2d))


@pytest.mark.parametrize(("expansion", "sizes"), [(1, [3, 3]), (4, [1, 3, 1])])
def test_branches_end_without_a_nonlinearity(expansion, sizes):
    branch = Residual(8, 8, 2, expansion, cifar=False, batch_norm=True).branch
    assert [type(m) for m in branch] == ([nn.Conv2d, nn.BatchNorm2d, nn.ReLU] * len(sizes))[:-1]
    assert [m.kernel_size[0] for m in branch if isinstance(m, nn.Conv2d)] == sizes
