import pytest
import torch
from torch import nn

from attemper.errors import ArgumentError
from attemper.models.parts import Standardise, fixed_norm, he_convolution, scaled


def test_standardise():
    images = torch.rand(5, 2, 3, 4)
    standardise = Standardise(2)
    assert torch.equal(standardise(images), images)
    standardise.set(torch.tensor([0.5, 0.25]), (0.5, 2.0))
    torch.testing.assert_close(standardise(images)[:, 0], (images[:, 0] - 0.5) / 0.5)
    torch.testing.assert_close(standardise(images)[:, 1], (images[:, 1] - 0.25) / 2)
    assert {name: tuple(buffer.shape) for name, buffer in standardise.state_dict().items()} == {
        "mean": (2, 1, 1),
        "std": (2, 1, 1),
    }


def test_a_constant_channel_is_not_divided_by_zero():
    standardise = Standardise(1)
    standardise.set([0.5], [0.0])
    assert standardise.std.item() == pytest.approx(0.001)
    assert standardise(torch.full((1, 1, 2, 2), 0.5)).eq(0).all()


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ([0.0], [1.0, 1.0], "mean: 2 finite numbers, one a channel, is accepted, but [0.0] came"),
        ([0.0, 0.0], [1.0], "std: 2 finite numbers, one a channel, is accepted, but [1.0] came"),
        ([0.0, float("nan")], [1.0, 1.0], "mean: 2 finite numbers, one a channel, is accepted, but [0.0, nan] came"),
        ([0.0, 0.0], [1.0, float("inf")], "std: 2 finite numbers, one a channel, is accepted, but [1.0, inf] came"),
        ([0.0, 0.0], [1.0, -1.0], "std: numbers from 0 is accepted, but [1.0, -1.0] came"),
        ([0.0, 0.0], None, "std: 2 finite numbers, one a channel, is accepted, but None came"),
        ("ab", [1.0, 1.0], "mean: 2 finite numbers, one a channel, is accepted, but 'ab' came"),
    ],
)
def test_statistics_that_are_refused(mean, std, message):
    standardise = Standardise(2)
    with pytest.raises(ArgumentError) as refused:
        standardise.set(mean, std)
    assert str(refused.value) == message
    assert standardise.mean.eq(0).all()
    assert standardise.std.eq(1).all()


def test_fixed_norm_holds_for_small_logits():
    rows = torch.randn(3, 100, dtype=torch.float64) * 1e-4
    torch.testing.assert_close(fixed_norm(100)(rows).norm(dim=1), torch.full((3,), 10.0).double(), rtol=1e-3, atol=0)


def test_he_convolution():
    torch.manual_seed(0)
    convolution = nn.Conv2d(8, 64, 3, stride=2)
    he_convolution(convolution)
    assert convolution.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)
    assert convolution.bias.eq(0).all()


def test_scaled():
    assert [scaled(64, m) for m in (1.0, 0.5, 0.01, 1e-9)] == [64, 32, 1, 1]
