import pytest
import torch
from torch import nn

from attemper.models.vgg import VGG


@pytest.mark.parametrize(("sides", "pools"), [((32, 32), 5), ((8, 8), 3), ((33, 17), 4), ((1, 9), 0), ((20, 2), 1)])
def test_a_pool_is_left_out_where_a_side_is_one(sides, pools):
    body = VGG((1, *sides), 11, 1 / 16, True)
    assert sum(isinstance(m, nn.MaxPool2d) for m in body.modules()) == pools
    assert body(torch.rand(2, 1, *sides)).shape == (2, 32)


def test_pools_stand_between_the_stages():
    body = VGG((1, 32, 32), 16, 1 / 16, True)
    images, sides = torch.rand(2, 1, 32, 32), []
    for block in body.blocks:
        images = block(images)
        sides.append(images.shape[-1])
    assert sides == [32, 32, 16, 16, 8, 8, 8, 4, 4, 4, 2, 2, 2]
    assert body.pool(images).shape == (2, 32, 1, 1)


def test_form_of_large_images():
    body = VGG((1, 65, 20), 11, 1 / 16, True)
    assert [tuple(m.weight.shape) for m in body.modules() if isinstance(m, nn.Linear)] == [(256, 32 * 49), (256, 256)]
    images = torch.rand(2, 1, 65, 20)
    assert torch.equal(body.eval()(images), body(images))
    body.train()
    assert not torch.equal(body(images), body(images))


def test_dropout_before_the_classifier():
    body = VGG((1, 65, 20), 11, 1 / 16, True).train()
    # the other dropout stands among the dense layers
    body.dense.eval()
    images = torch.rand(2, 1, 65, 20)
    dropped = body(images)
    body.dropout.eval()
    kept = body(images)
    assert torch.equal(dropped[dropped != 0], 2 * kept[dropped != 0])
    assert 0.3 < (dropped == 0)[kept != 0].float().mean() < 0.7


def test_batch_norm():
    convolutions, norms = (
        [sum(isinstance(m, kind) for m in VGG((1, 8, 8), 13, 1 / 16, on).modules()) for on in (True, False)]
        for kind in (nn.Conv2d, nn.BatchNorm2d)
    )
    assert convolutions == [10, 10]
    assert norms == [10, 0]


def test_first_weights(narrow):
    model = narrow("vgg11", classes=200)
    assert model.classifier.weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert model.classifier.bias.eq(0).all()
