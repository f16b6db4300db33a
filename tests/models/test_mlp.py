import torch
from torch import nn

from attemper.models import build
from attemper.models.mlp import MLP


def test_sizes():
    model = build("mlp", image_shape=(1, 20, 20), classes=100)
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in layers] == [(400, 256), *[(256, 256)] * 5, (256, 100)]
    model = build("mlp", image_shape=(2, 3, 5), classes=4, depth=2, width=12, width_multiplier=0.5, batch_norm=True)
    sizes = [tuple(p.shape) for p in model.parameters() if p.dim() == 2]
    assert sizes == [(6, 30), (6, 6), (4, 6)]
    assert [type(m) for m in model.body.hidden[1]] == [nn.Linear, nn.BatchNorm1d, nn.ReLU]


def test_it_is_the_composition_of_its_layers():
    body = MLP((1, 2, 2), depth=2, width=3, batch_norm=False)
    images = torch.randn(5, 1, 2, 2)
    first, second = body.hidden[0][0], body.hidden[1][0]
    expected = second(first(images.reshape(5, 4)).clamp_min(0)).clamp_min(0)
    torch.testing.assert_close(body(images), expected)


def test_first_weights_keep_the_power_of_the_signal_through_twenty_layers():
    model = build("mlp", image_shape=(1, 20, 20), classes=10, depth=20, width=512, seed=0)
    powers = []
    for layer in model.body.hidden:
        layer.register_forward_hook(lambda module, inputs, output: powers.append(output.square().mean().item()))
    model.body(torch.randn(64, 1, 20, 20))
    assert 0.5 < powers[19] / powers[0] < 2
