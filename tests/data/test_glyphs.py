import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest
import safetensors.torch as safetensors
import torch
from matplotlib.ft2font import FT2Font

from attemper.data import glyphs, load
from attemper.errors import ArgumentError


def known(face: str) -> set[str]:
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"
    return {chr(code) for code in FT2Font(str(path)).get_charmap()}


def test_a_hundred_different_characters_that_the_fonts_have():
    assert len(glyphs.CHARACTERS) == len(set(glyphs.CHARACTERS)) == 100
    assert not set(glyphs.NOVEL) & set(glyphs.CHARACTERS)
    assert not set(glyphs.FAMILIES) & set(glyphs.SHIFTED_FAMILIES)
    for face in glyphs.FAMILIES:
        assert set(glyphs.CHARACTERS) <= known(face)
    for face in glyphs.SHIFTED_FAMILIES[:4]:
        assert set(glyphs.CHARACTERS) <= known(face)
    assert set(glyphs.NOVEL) <= set.union(*map(known, glyphs.FAMILIES))


@pytest.mark.parametrize(
    ("split", "classes", "count"),
    [("train", 100, 300), ("test", 100, 300), ("shifted", 100, 300), ("novel", 53, 159), ("noise", 1, 300)],
)
def test_splits(split, classes, count):
    images = load("glyphs", split, per_class=3)
    assert len(images) == count
    assert len(images.classes) == classes
    assert images.image_shape == (1, 20, 20)
    assert torch.equal(images.labels.bincount(), torch.full((classes,), count // classes))
    assert images.images.float().std() > 20
    assert len(images.images.flatten(1).unique(dim=0)) == count


def test_defaults_give_200_images_a_class_to_train_on_and_50_to_test():
    assert len(load("glyphs", "train", size=8, classes=3)) == 600
    assert len(load("glyphs", "test", size=8, classes=3)) == 150


def test_parameters_change_size_classes_and_count():
    images = load("glyphs", "train", size=13, classes=7, per_class=5)
    assert images.images.shape == (35, 1, 13, 13)
    assert images.classes == tuple(glyphs.CHARACTERS[:7])


def test_a_seed_gives_the_same_images_and_another_seed_or_split_others():
    first = load("glyphs", "train", per_class=2)
    for file in glyphs.cache_folder().glob("glyphs-*"):
        file.unlink()
    assert load("glyphs", "train", per_class=2).fingerprint == first.fingerprint
    others = [load("glyphs", "train", per_class=2, seed=1), load("glyphs", "test", per_class=2)]
    assert len({first.fingerprint, *(other.fingerprint for other in others)}) == 3


def test_a_plain_nearest_mean_tells_the_characters_apart_less_well_in_new_fonts():
    train, test, shifted = (load("glyphs", split, per_class=30) for split in ("train", "test", "shifted"))
    means = torch.stack([train.images[train.labels == c].float().flatten(1).mean(0) for c in range(100)])

    def accuracy(images):
        return (torch.cdist(images.images.float().flatten(1), means).argmin(1) == images.labels).float().mean().item()

    assert accuracy(test) > 0.5
    assert 0.2 < accuracy(shifted) < accuracy(test) - 0.1


NEUTRAL = {"ROTATION": 0.0, "SHIFT": 0.0, "SCALES": (1.0, 1.0), "INKS": (1.0, 1.0), "NOISE": 0.0}


@pytest.mark.parametrize("varied", [None, *NEUTRAL])
def test_a_character_is_drawn_in_twelve_faces_and_varied_in_five_ways(monkeypatch, varied):
    for factor in NEUTRAL.keys() - {varied}:
        monkeypatch.setattr(glyphs, factor, NEUTRAL[factor])
    labels = torch.zeros(200, dtype=torch.int64)
    images = glyphs._draw("R", glyphs.FAMILIES, labels, 20, torch.Generator().manual_seed(0))
    different = len(images.flatten(1).unique(dim=0))
    assert different == 12 if varied is None else different > 150


def test_images_do_not_depend_on_how_many_are_drawn_at_once(monkeypatch):
    def draw():
        labels = torch.zeros(100, dtype=torch.int64)
        return glyphs._draw("R", glyphs.FAMILIES, labels, 13, torch.Generator().manual_seed(0))

    whole, usual, drawn = draw(), glyphs.functional.affine_grid, []
    monkeypatch.setattr(glyphs, "PIXELS", 20 * 13 * 13)
    monkeypatch.setattr(
        glyphs.functional,
        "affine_grid",
        lambda affine, *rest, **more: drawn.append(len(affine)) or usual(affine, *rest, **more),
    )
    assert torch.equal(draw(), whole)
    assert drawn == [16] * 6 + [4]


def test_ink_stays_within_the_frame():
    """A frame of one pixel is background in all but a few of the images."""
    images = load("glyphs", "train", per_class=30).images.float()
    border = torch.cat([images[..., 0, :], images[..., -1, :], images[..., :, 0], images[..., :, -1]], -1)
    assert border.mean() < 0.4 * images.mean()
    assert (border.amax((1, 2)) > 150).float().mean() < 0.05


def test_drawing_is_kept_and_read_back(monkeypatch):
    first = load("glyphs", "train", per_class=4)
    monkeypatch.setattr(glyphs, "_draw", lambda *arguments: pytest.fail("drawn again"))
    assert load("glyphs", "train", per_class=4).fingerprint == first.fingerprint


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-100],
        lambda data: b"x" * len(data),
        lambda data: safetensors.save({"images": safetensors.load(data)["images"][:, :, 1:].contiguous()}),
        lambda data: safetensors.save({"images": safetensors.load(data)["images"].float()}),
        lambda data: safetensors.save({"others": safetensors.load(data)["images"]}),
    ],
)
def test_a_damaged_file_in_the_cache_is_drawn_anew(damage, monkeypatch, tmp_path):
    monkeypatch.setenv("ATTEMPER_CACHE", str(tmp_path))
    first = load("glyphs", "train", per_class=4)
    for file in tmp_path.iterdir():
        file.write_bytes(damage(file.read_bytes()))
    assert load("glyphs", "train", per_class=4).fingerprint == first.fingerprint


def test_processes_that_draw_the_same_at_once_agree(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTEMPER_CACHE", str(tmp_path))
    code = "from attemper.data import load; print(load('glyphs', 'train', classes=30, per_class=20).fingerprint)"
    command = [sys.executable, "-c", code]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    fingerprints = {process.communicate()[0].strip() for process in processes}
    assert len(fingerprints) == 1
    assert len(fingerprints.pop()) == 16
    assert [file.suffix for file in tmp_path.iterdir()] == [".safetensors"]


def test_a_cache_that_cannot_be_written_is_said_and_does_not_stop(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ATTEMPER_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cache cannot be written: cannot make the folder .* a file stands there"):
        images = load("glyphs", "train", classes=2, per_class=2)
    assert len(images) == 4


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("ATTEMPER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert glyphs.cache_folder() == tmp_path / "attemper"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert glyphs.cache_folder() == tmp_path / ".cache" / "attemper"


def test_what_is_refused():
    with pytest.raises(ArgumentError, match="^split: one of train, test, shifted, novel, noise"):
        load("glyphs", "valid")
    for name, value, accepted in (
        ("size", 7, "a whole number from 8 to 256"),
        ("size", 257, "a whole number from 8 to 256"),
        ("classes", 101, "a whole number from 2 to 100"),
        ("classes", 1, "a whole number from 2 to 100"),
        ("per_class", 0, "a whole number from 1"),
        ("seed", -1, "a whole number from 0"),
        ("size", "20", "a whole number from 8 to 256"),
    ):
        with pytest.raises(ArgumentError, match=f"^{name}: {accepted} is accepted, but {value!r} came"):
            load("glyphs", "train", **{name: value})
