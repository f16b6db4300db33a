import difflib

import pytest
import torch

import attemper as at
from attemper.errors import ArgumentError
from attemper.models import NAMES, build


def count(name, image_shape, classes, **options):
    with torch.device("meta"):
        model = build(name, image_shape=image_shape, classes=classes, **options)
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("vgg11", 9_231_114),
        ("vgg13", 9_416_010),
        ("vgg16", 14_728_266),
        ("vgg19", 20_040_522),
        ("resnet18", 11_173_962),
        ("resnet34", 21_282_122),
        ("resnet50", 23_520_842),
        ("resnet20", 269_722),
        ("resnet32", 464_154),
        ("resnet44", 658_586),
        ("resnet56", 853_018),
    ],
)
def test_counts_for_cifar(name, parameters):
    assert count(name, (3, 32, 32), 10) == parameters


@pytest.mark.parametrize(
    ("name", "batch_norm", "parameters"),
    [
        ("vgg11", True, 132_868_840),
        ("vgg11", False, 132_863_336),
        ("vgg13", True, 133_053_736),
        ("vgg16", True, 138_365_992),
        ("vgg16", False, 138_357_544),
        ("vgg19", True, 143_678_248),
        ("resnet18", True, 11_689_512),
        ("resnet34", True, 21_797_672),
        ("resnet50", True, 25_557_032),
        ("vit-tiny", False, 5_717_416),
        ("vit-small", False, 22_050_664),
        ("vit-base", False, 86_567_656),
    ],
)
def test_counts_for_imagenet(name, batch_norm, parameters):
    assert count(name, (3, 224, 224), 1000, batch_norm=batch_norm) == parameters


def test_defaults_of_batch_norm():
    for name, default in (("mlp", False), ("vgg11", True), ("resnet20", True), ("vit", False)):
        counts = [count(name, (3, 32, 32), 10, batch_norm=choice) for choice in (None, default)]
        assert counts[0] == counts[1]
    model = build("vit", image_shape=(1, 8, 8), classes=2)
    assert not any(isinstance(module, torch.nn.BatchNorm1d) for module in model.modules())


def test_every_name_and_the_families():
    assert len(NAMES) == len(set(NAMES)) == 1 + 4 + 7 + 3
    for name in NAMES:
        assert count(name, (1, 8, 8), 3) > 0
    assert count("vgg", (3, 32, 32), 10, depth=13) == 9_416_010
    assert count("resnet", (3, 32, 32), 10, depth=20) == 269_722
    assert count("vit", (3, 224, 224), 1000) == 5_717_416


def test_it_is_a_function_after_its_module_is_imported():
    import attemper.models.build  # noqa: F401

    assert callable(at.models.build)


@pytest.mark.parametrize("name", ["vgg11", "resnet18", "resnet20"])
def test_width_multiplier(name):
    model = build(name, image_shape=(3, 16, 16), classes=7, width_multiplier=0.5)
    full = count(name, (3, 16, 16), 7)
    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert convolutions[0].out_channels == (8 if name == "resnet20" else 32)
    assert model.classifier.in_features == (32 if name == "resnet20" else 256)
    assert 0.24 < sum(p.numel() for p in model.parameters()) / full < 0.27
    assert count(name, (3, 16, 16), 7, width_multiplier=1e-9) > 0


@pytest.mark.parametrize("name", ["mlp", "vgg11", "resnet20", "vit"])
@pytest.mark.parametrize("image_shape", [(1, 20, 20), (1, 8, 8), (3, 33, 17), (2, 66, 90), (3, 23, 23), (1, 97, 97)])
def test_any_image(name, image_shape, narrow):
    model = narrow(name, image_shape)
    model.train()
    logits = model(torch.rand(2, *image_shape))
    assert logits.shape == (2, 10)
    assert logits.isfinite().all()
    assert not torch.equal(logits[0], logits[1])


def test_large_images_take_another_stem(narrow):
    image_shape = (3, 70, 65)
    assert narrow("resnet18", image_shape)(torch.rand(2, *image_shape)).shape == (2, 10)
    small = (3, 64, 64)
    assert narrow("resnet18", small).body.stem(torch.rand(1, *small)).shape[2:] == (64, 64)
    assert narrow("resnet18", image_shape).body.stem(torch.rand(1, *image_shape)).shape[2:] == (18, 17)
    assert narrow("resnet20", image_shape).body.stem(torch.rand(1, *image_shape)).shape[2:] == (70, 65)


def test_seed():
    def weights(**options):
        model = build("vit", image_shape=(1, 8, 8), classes=2, width_multiplier=0.1, **options)
        return torch.cat([p.flatten() for p in model.parameters()]).detach()

    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = weights(seed=1), weights(seed=1), weights(seed=2)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    unseeded = weights()
    assert not torch.equal(before, torch.get_rng_state())
    torch.manual_seed(5)
    assert torch.equal(unseeded, weights())
    with torch.device("meta"):
        assert weights(seed=1).device.type == "meta"


def test_init_scale(narrow):
    for name in ("mlp", "vgg11", "resnet18", "vit"):
        one, two = (dict(narrow(name, batch_norm=True, init_scale=scale).named_parameters()) for scale in (1, 2))
        modules = dict(narrow(name, batch_norm=True).named_modules())
        scaled = 0
        for path, parameter in one.items():
            owner, _, kind = path.rpartition(".")
            if kind == "weight" and isinstance(modules[owner], torch.nn.Linear | torch.nn.Conv2d):
                assert torch.equal(two[path], 2 * parameter), path
                assert parameter.std() > 0
                scaled += 1
            else:
                assert torch.equal(two[path], parameter), path
        assert scaled >= 7


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("resnt18", "resnet18"), ("ResNet-50", "resnet50"), ("vit_tiny", "vit-tiny"), ("vgg-16", "vgg16"), ("MLP", "mlp")],
)
def test_unknown_names_are_answered_with_the_nearest(name, suggestion):
    with pytest.raises(ArgumentError, match=f"^name: {suggestion} \\(the nearest\\), or one of mlp, .* {name!r} came"):
        build(name, image_shape=(3, 32, 32), classes=10)


@pytest.mark.parametrize("name", ["zzz", None, 3, ["mlp"], "mlp\n"])
def test_other_names(name):
    nearest = "mlp \\(the nearest\\), or " if difflib.get_close_matches(str(name), ["mlp"]) else ""
    with pytest.raises(ArgumentError, match=f"^name: {nearest}one of mlp, vgg11, .*, vit-base,? is accepted"):
        build(name, image_shape=(3, 32, 32), classes=10)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mlp", {"width": 0}, "width: a whole number from 1 is accepted, but 0 came"),
        ("mlp", {"width": 2.5}, "width: a whole number from 1 is accepted, but 2.5 came"),
        ("mlp", {"depth": 0}, "depth: a whole number from 1 is accepted, but 0 came"),
        ("mlp", {"depth": True}, "depth: a whole number from 1 is accepted, but True came"),
        ("mlp", {"patch_size": 4}, "patch_size: nothing beside mlp (it belongs to vit) is accepted, but 4 came"),
        ("resnet18", {"width": 64}, "width: nothing beside resnet18 (it belongs to mlp) is accepted, but 64 came"),
        ("resnet18", {"depth": 18}, "depth: nothing beside resnet18 (it belongs to mlp, vgg or resnet) is accepted"),
        ("vit", {"depth": 12}, "depth: nothing beside vit (it belongs to mlp, vgg or resnet) is accepted, but 12 came"),
        ("resnet", {}, "depth: 18, 20, 32, 34, 44, 50 or 56 is accepted, but None came"),
        ("vgg", {"depth": 18}, "depth: 11, 13, 16 or 19 is accepted, but 18 came"),
        ("mlp", {"width_multiplier": -1}, "width_multiplier: a finite number above 0 is accepted, but -1 came"),
        ("mlp", {"width_multiplier": float("inf")}, "width_multiplier: a finite number above 0 is accepted, but inf"),
        ("vit", {"init_scale": float("nan")}, "init_scale: a finite number above 0 is accepted, but nan came"),
        ("mlp", {"init_scale": 0}, "init_scale: a finite number above 0 is accepted, but 0 came"),
        ("mlp", {"init_scale": "2"}, "init_scale: a finite number above 0 is accepted, but '2' came"),
        ("mlp", {"batch_norm": "yes"}, "batch_norm: True, False or None is accepted, but 'yes' came"),
        ("mlp", {"normalisation": "both"}, "normalisation: none, before-classifier or logits is accepted, but 'both'"),
        ("mlp", {"classes": 1}, "classes: a whole number from 2 is accepted, but 1 came"),
        ("mlp", {"classes": 0}, "classes: a whole number from 2 is accepted, but 0 came"),
        ("mlp", {"image_shape": (28, 28)}, "image_shape: (channels, height, width), whole numbers from 1, is accepted"),
        ("mlp", {"image_shape": (0, 8, 8)}, "image_shape: (channels, height, width), whole numbers from 1, is accept"),
        ("mlp", {"image_shape": (1, 8.0, 8)}, "image_shape: (channels, height, width), whole numbers from 1, is acc"),
        (
            "mlp",
            {"image_shape": 28},
            "image_shape: (channels, height, width), whole numbers from 1, is accepted, but 28",
        ),
        ("mlp", {"seed": -1}, "seed: a whole number from 0 is accepted, but -1 came"),
        ("mlp", {"seed": 0.5}, "seed: a whole number from 0 is accepted, but 0.5 came"),
        ("mlp", {"seed": 2**70}, f"seed: a whole number from 0 to {2**63 - 1} is accepted, but {2**70} came"),
        ("vit", {"patch_size": 2.0}, "patch_size: a whole number from 1 is accepted, but 2.0 came"),
        ("vit", {"patch_size": 0}, "patch_size: a whole number from 1 is accepted, but 0 came"),
    ],
)
def test_refusals(name, options, message):
    with pytest.raises(ArgumentError) as refused:
        build(name, **{"image_shape": (1, 8, 8), "classes": 10, **options})
    assert str(refused.value).startswith(message)
