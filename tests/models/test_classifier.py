import math

import pytest
import torch

from attemper.errors import ArgumentError
from attemper.models import NAMES, Classifier
from attemper.models.mlp import MLP


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_layers_run_once_and_in_order(name, batch_norm, narrow):
    model = narrow(name, (3, 8, 8), batch_norm=batch_norm).eval()
    modules = dict(model.named_modules())
    ran = []
    for layer, module in modules.items():
        module.register_forward_hook(lambda _, __, out, layer=layer: ran.append((layer, out, out.detach().clone())))
    model(torch.rand(2, 3, 8, 8))

    layers = model.layers()
    assert [layer for layer, _, _ in ran if layer in layers] == layers
    assert len(set(layers)) == len(layers) == expected_layers(name)
    assert layers.index(layers[-1]) < [layer for layer, _, _ in ran].index("classifier")
    for layer, out, at_once in ran:
        assert torch.equal(out, at_once), f"{layer} was overwritten"
        if layer in layers:
            assert len(out) == 2
            # after the nonlinearity, but for a transformer's sums
            assert name.startswith("vit") or (out >= 0).all()


def expected_layers(name):
    vgg = {"vgg11": 8, "vgg13": 10, "vgg16": 13, "vgg19": 16}
    resnet = {18: 9, 34: 17, 50: 17, 20: 10, 32: 16, 44: 22, 56: 28}
    if name.startswith("resnet"):
        return resnet[int(name.removeprefix("resnet"))]
    return vgg.get(name) or (6 if name == "mlp" else 12)


def test_dense_layers_of_large_images_are_probed(narrow):
    layers = narrow("vgg11", (3, 65, 65)).layers()
    assert layers == [f"body.blocks.{i}" for i in range(8)] + ["body.dense.0", "body.dense.1"]


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize("name", ["mlp", "vgg11", "resnet18", "resnet20", "resnet50", "vit"])
def test_the_gradient_reaches_every_parameter(name, batch_norm, narrow):
    # in eval mode, as batch statistics cancel what a bias before them does
    model = narrow(name, (3, 8, 8), batch_norm=batch_norm).double().eval()
    logits = model(torch.rand(8, 3, 8, 8, dtype=torch.float64))
    torch.nn.functional.cross_entropy(logits, torch.arange(8)).backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None, path
        assert parameter.grad.isfinite().all(), path
        assert parameter.grad.any(), path


@pytest.mark.parametrize("name", ["mlp", "vgg11", "resnet18", "resnet20", "vit"])
def test_normalisation(name, narrow):
    images = torch.rand(4, 3, 8, 8)
    inputs = []
    for normalisation in ("none", "before-classifier", "logits"):
        model = narrow(name, (3, 8, 8), normalisation=normalisation).eval()
        model.classifier.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        logits = model(images)
        if normalisation == "logits":
            torch.testing.assert_close(logits.norm(dim=1), torch.full((4,), math.sqrt(10)), rtol=1e-3, atol=0)
            torch.testing.assert_close(logits.mean(1), torch.zeros(4), rtol=0, atol=1e-6)
    plain, before, after = inputs
    features = plain.shape[1]
    torch.testing.assert_close(before.norm(dim=1), torch.full((4,), math.sqrt(features)), rtol=1e-3, atol=0)
    torch.testing.assert_close(before.mean(1), torch.zeros(4), rtol=0, atol=1e-6)
    assert torch.equal(plain, after)


def test_normalisation_adds_no_parameters(narrow):
    names = {
        normalisation: [path for path, _ in narrow("mlp", normalisation=normalisation).named_parameters()]
        for normalisation in ("none", "before-classifier", "logits")
    }
    assert names["none"] == names["before-classifier"] == names["logits"]


def test_statistics_are_applied_and_saved(narrow):
    model, other = narrow("mlp"), narrow("mlp")
    images = torch.rand(3, 3, 16, 16)
    by_hand = (images - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / torch.tensor([1.0, 2.0, 4.0])[:, None, None]
    expected = model(by_hand)
    model.standardise.set([0.1, 0.2, 0.3], [1.0, 2.0, 4.0])
    torch.testing.assert_close(model(images), expected)
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(images), other(images))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["mlp", "vgg11", "resnet18", "resnet20", "vit"])
def test_other_dtypes(name, dtype, narrow):
    images = torch.rand(2, 3, 8, 8)
    expected = narrow(name, (3, 8, 8)).eval()(images)
    logits = narrow(name, (3, 8, 8)).to(dtype).eval()(images.to(dtype))
    assert logits.dtype == dtype
    error = (logits.double() - expected.double()).norm() / expected.double().norm()
    assert error < (0.1 if dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize(
    ("images", "came"),
    [
        (torch.zeros(2, 3, 16, 15), "float32 (2, 3, 16, 15)"),
        (torch.zeros(3, 16, 16), "float32 (3, 16, 16)"),
        (torch.zeros(2, 1, 16, 16), "float32 (2, 1, 16, 16)"),
        (torch.zeros(2, 3, 16, 16, dtype=torch.uint8), "uint8 (2, 3, 16, 16)"),
    ],
)
def test_other_images_are_refused(images, came, narrow):
    with pytest.raises(ArgumentError) as refused:
        narrow("mlp")(images)
    assert str(refused.value) == f"images: (n, 3, 16, 16) of floating point is accepted, but {came!r} came"


def test_what_it_is_made_of_is_known(narrow):
    model = narrow("resnet20", [1, 9, 8], classes=4)
    assert model.image_shape == (1, 9, 8)
    assert model.classes == model.classifier.out_features == 4


@pytest.mark.parametrize(
    ("option", "value"), [("classes", 1), ("normalisation", ""), ("init_scale", -1.0), ("image_shape", (8, 8))]
)
def test_refusals(option, value):
    body = MLP((1, 8, 8), depth=1, width=4, batch_norm=False)
    with pytest.raises(ArgumentError, match=f"^{option}: .* but .* came"):
        Classifier(body, **{"image_shape": (1, 8, 8), "classes": 3, option: value})
