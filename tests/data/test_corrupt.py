import io
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage, stats
from torch.nn import functional

from attemper.data import CORRUPTIONS, MemoryImages, corrupt, load
from attemper.data.corrupt import STRENGTHS, image_keys, normal
from attemper.errors import ArgumentError


def smooth(n, channels, height, width, seed=0):
    """Images with shapes in them, not noise: low frequencies enlarged."""
    coarse = torch.rand(n, channels, 5, 5, generator=torch.Generator().manual_seed(seed))
    images = functional.interpolate(coarse, (height, width), mode="bicubic", align_corners=False).clamp(0, 1)
    labels = torch.arange(n) % 3
    return MemoryImages("blobs", "test", images.mul(255).round().to(torch.uint8), labels, ("a", "b", "c"))


def pixels(images):
    return images.pixels(torch.arange(len(images)))


def difference(images, kind, severity):
    return float((pixels(corrupt(images, kind, severity)).float() - pixels(images).float()).abs().mean())


@pytest.mark.parametrize("kind", CORRUPTIONS)
@pytest.mark.parametrize("which", ["colour", "digits"])
def test_the_change_rises_with_severity(kind, which):
    images = smooth(40, 3, 32, 32) if which == "colour" else load("digits", "test")
    changes = [difference(images, kind, severity) for severity in range(1, 6)]
    assert changes[0] > 0
    assert changes == sorted(set(changes))


@pytest.mark.parametrize("kind", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 20, 20), (3, 13, 30), (1, 64, 48)])
def test_an_image_does_not_depend_on_its_batch(kind, shape, through_loader):
    images = smooth(7, *shape)
    corrupted = corrupt(images, kind)
    whole = pixels(corrupted)
    assert whole.dtype == torch.uint8
    assert torch.equal(corrupted.pixels(torch.tensor([5, 2, 5])), whole[[5, 2, 5]])
    assert torch.equal(corrupted.pixels(torch.tensor([6])), whole[6:])
    assert corrupted.pixels(torch.tensor([], dtype=torch.int64)).shape == (0, *shape)
    _, labels = through_loader(corrupted)
    assert torch.equal(labels, images.labels)


def test_large_sets_are_corrupted_in_parts(monkeypatch):
    corrupted = corrupt(smooth(9, 1, 10, 10), "noise")
    whole = pixels(corrupted)
    monkeypatch.setattr(sys.modules["attemper.data.corrupt"], "CHUNK", 250)
    assert torch.equal(pixels(corrupted), whole)


def test_what_is_kept_and_what_is_said():
    images = smooth(6, 3, 12, 12)
    corrupted = corrupt(images, "contrast", 5)
    assert (corrupted.classes, corrupted.image_shape, corrupted.split) == (images.classes, (3, 12, 12), "test")
    assert corrupted.name == "blobs with contrast of severity 5"
    for found, original in zip(corrupted.statistics.std, images.statistics.std, strict=True):
        assert 0 < found < 0.8 * original
    made = [("contrast", 5, 0), ("contrast", 4, 0), ("blur", 5, 0), ("contrast", 5, 1)]
    assert len({corrupt(images, *how).fingerprint for how in made} | {images.fingerprint}) == 5
    assert corrupt(images, "contrast", 5).fingerprint == corrupted.fingerprint


def test_the_seed_changes_what_is_random():
    images = smooth(30, 1, 12, 12)
    for kind in ("noise", "rotation"):
        assert not torch.equal(pixels(corrupt(images, kind, seed=0)), pixels(corrupt(images, kind, seed=1)))


def test_noise_is_normal_and_independent():
    keys = image_keys(torch.arange(200), seed=3)
    drawn = normal(keys, 500)
    assert stats.kstest(drawn.flatten().numpy(), "norm").pvalue > 1e-3
    # a correlation over 100,000 pairs has a deviation of 0.003
    for other in (drawn.roll(1, 0), drawn.roll(1, 1), normal(image_keys(torch.arange(200), seed=4), 500)):
        assert abs(np.corrcoef(drawn.flatten(), other.flatten())[0, 1]) < 0.015
    assert len(drawn.unique()) > 99_000


def test_noise_has_the_stated_deviation():
    gray = MemoryImages("gray", "test", torch.full((50, 1, 20, 20), 128, dtype=torch.uint8), torch.zeros(50), ("a",))
    for severity, strength in enumerate(STRENGTHS["noise"][1], 1):
        found = pixels(corrupt(gray, "noise", severity)).float().div(255).std()
        assert float(found) == pytest.approx(strength, rel=0.03)


def test_blur_is_the_gaussian_filter():
    images = smooth(4, 3, 20, 26)
    for severity, strength in enumerate(STRENGTHS["blur"][1], 1):
        sigma = strength * (1 + 20 / 32)
        radius = int(np.ceil(3 * sigma))
        expected = ndimage.gaussian_filter(
            pixels(images).double().numpy(), (0, 0, sigma, sigma), mode="mirror", radius=(0, 0, radius, radius)
        )
        found = pixels(corrupt(images, "blur", severity)).double().numpy()
        assert np.abs(found - expected).max() <= 0.501


def test_pixelate_averages_squares():
    images = smooth(4, 3, 20, 40)
    means = functional.avg_pool2d(pixels(images).float(), 2)
    expected = means.repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert STRENGTHS["pixelate"][1][2] == 0.5
    assert float((pixels(corrupt(images, "pixelate", 3)).float() - expected).abs().max()) <= 0.501


def test_contrast_and_brightness_are_what_they_say():
    images = smooth(4, 3, 9, 9)
    before = pixels(images).float()
    mean = before.mean((2, 3), keepdim=True)
    assert float((pixels(corrupt(images, "contrast", 5)) - (mean + 0.15 * (before - mean))).abs().max()) <= 0.501
    expected = (before + 255 * STRENGTHS["brightness"][1][3]).clamp(max=255)
    assert float((pixels(corrupt(images, "brightness", 4)) - expected).abs().max()) <= 0.501


def test_rotation_turns_each_image_one_way_or_the_other():
    images = smooth(40, 1, 41, 41)
    found = pixels(corrupt(images, "rotation", 2))
    across = torch.linspace(-1, 1, 41)
    disc = (across[:, None] ** 2 + across**2) < 0.9
    signs = []
    for before, after in zip(pixels(images), found, strict=True):
        image = Image.fromarray(before[0].numpy())
        turned = [np.asarray(image.rotate(sign * 20, Image.Resampling.BILINEAR)) for sign in (1, -1)]
        errors = [np.abs(after[0].numpy().astype(int) - each)[disc].max() for each in turned]
        assert min(errors) <= 2
        signs.append(int(np.argmin(errors)))
    assert 10 <= sum(signs) <= 30


def test_rotation_of_an_image_that_is_not_square_keeps_shapes():
    bar = torch.zeros(1, 1, 21, 61, dtype=torch.uint8)
    bar[0, 0, 10, 25:36] = 255
    found = pixels(corrupt(MemoryImages("bar", "test", bar, torch.zeros(1), ("a",)), "rotation", 3))[0, 0].double()
    rows, columns = torch.meshgrid(torch.arange(21.0) - 10, torch.arange(61.0) - 30, indexing="ij")
    spread = [float((found * part).sum() / found.sum()) for part in (rows**2, columns**2, rows * columns)]
    # a thin bar of variance 10 at 30 degrees
    assert spread[1] == pytest.approx(10 * 0.75, abs=0.7)
    assert spread[0] == pytest.approx(10 * 0.25, abs=0.7)
    assert abs(spread[2]) == pytest.approx(10 * 0.433, abs=0.7)


def test_jpeg_is_pillows():
    for channels, mode in ((3, "RGB"), (1, "L")):
        images = smooth(3, channels, 16, 24)
        for before, after in zip(pixels(images), pixels(corrupt(images, "jpeg", 4)), strict=True):
            file = io.BytesIO()
            Image.fromarray(before.permute(1, 2, 0).squeeze(2).numpy()).save(file, "JPEG", quality=22)
            expected = np.asarray(Image.open(file).convert(mode))
            assert np.array_equal(after.permute(1, 2, 0).squeeze(2).numpy(), expected)


def test_refuses_what_it_cannot_do():
    images = smooth(2, 2, 8, 8)
    with pytest.raises(ArgumentError, match=r"kind: one of noise, blur, .*, jpeg is accepted, but 'fog' came"):
        corrupt(images, "fog")
    for severity in (0, 6, 2.5, "3", True):
        with pytest.raises(
            ArgumentError, match=f"severity: a whole number from 1 to 5 is accepted, but {severity!r} came"
        ):
            corrupt(images, "noise", severity)
    for seed in (None, -1, 2**70):
        with pytest.raises(ArgumentError, match=f"seed: a whole number from 0.* is accepted, but {seed} came"):
            corrupt(images, "noise", seed=seed)
    with pytest.raises(ArgumentError, match="channels: 1 or 3, for jpeg, is accepted, but 2 came"):
        corrupt(images, "jpeg")[0]
