import inspect
import re
import shutil

import numpy as np
import pytest

import attemper as at
from attemper.data import load
from attemper.errors import ArgumentError, DataError


@pytest.fixture
def fashion(tmp_path):
    """A root with a tiny Fashion-MNIST."""
    for part in ("train", "t10k"):
        images, labels = np.full((2, 28, 28), 7, np.uint8), np.array([4, 5], np.uint8)
        header = np.array([0x803, 2, 28, 28], ">u4").tobytes()
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(np.array([0x801, 2], ">u4").tobytes() + labels.tobytes())
    return tmp_path


def test_the_signature_is_the_promised_one():
    assert str(inspect.signature(load)).startswith("(name: str, split: str, root: ")
    assert inspect.signature(load).parameters["root"].default is None
    assert at.data.load is load


def test_the_root_comes_from_the_argument_the_environment_or_the_folder_data(fashion, tmp_path_factory, monkeypatch):
    here, other = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("other")
    monkeypatch.chdir(here)
    monkeypatch.delenv("ATTEMPER_DATA", raising=False)
    with pytest.raises(DataError, match=str(here / "data")):
        load("fashion-mnist", "train")
    shutil.copytree(fashion, here / "data")
    assert load("fashion-mnist", "train").labels.tolist() == [4, 5]
    monkeypatch.setenv("ATTEMPER_DATA", str(other))
    with pytest.raises(DataError, match=str(other)):
        load("fashion-mnist", "train")
    assert len(load("fashion-mnist", "test", str(fashion))) == 2


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("cifar-10", "cifar10"), ("CIFAR100", "cifar100"), ("fashionmnist", "fashion-mnist"), ("glyph", "glyphs")],
)
def test_an_unknown_name_is_answered_with_the_nearest(name, nearest):
    with pytest.raises(
        ArgumentError, match=rf"name: one of glyphs, digits, .*, hub:NAME \(did you mean '{nearest}'\?\)"
    ):
        load(name, "train")


@pytest.mark.parametrize("name", ["xyzzy", "", "folder", "folder:", "hub:", "cifar10:x", 3, None])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(ArgumentError, match="folder:PATH, hub:NAME"):
        load(name, "train")


@pytest.mark.parametrize(
    ("name", "splits"),
    [("digits", "train, test"), ("svhn", "train, test, extra"), ("glyphs", "train, test, shifted, novel, noise")],
)
def test_an_unknown_split_is_answered_with_those_there_are(name, splits):
    with pytest.raises(ArgumentError, match=f"split: one of {splits} is accepted, but 'tset' came"):
        load(name, "tset")


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("cifar10", "none"),
        ("cifar100", "labels"),
        ("digits", "seed"),
        ("glyphs", "size, classes, per_class, seed"),
        ("folder:x", "size, channels, classes"),
        ("hub:x", "config, image, label, size, channels, revision"),
    ],
)
def test_an_unknown_option_is_answered_with_those_there_are(name, accepted):
    with pytest.raises(ArgumentError, match=rf"options of [\w:]+: {accepted} is accepted, but 'sise' came"):
        load(name, "train", sise=3)


@pytest.mark.parametrize(("name", "accepted"), [("digits", "one of train, test"), ("folder:x", "a string")])
@pytest.mark.parametrize("split", [3, None, ["train"]])
def test_a_split_that_is_no_name_is_refused(name, accepted, split):
    with pytest.raises(ArgumentError, match=f"^split: {accepted} is accepted, but {re.escape(repr(split))} came"):
        load(name, split)


def test_a_root_that_is_no_path_is_refused():
    for use in (lambda: load("cifar10", "train", root=3), lambda: at.data.describe(3)):
        with pytest.raises(ArgumentError, match="^root: a path or None is accepted, but 3 came"):
            use()


def test_describe_has_a_row_for_each_and_says_what_is_here(fashion):
    table = at.data.describe(fashion).set_index("name")
    assert list(table.index) == [
        "glyphs", "digits", "fashion-mnist", "cifar10", "cifar100", "svhn", "folder:PATH", "hub:NAME",
    ]  # fmt: skip
    assert list(table.columns) == ["splits", "classes", "image_shape", "training_images", "origin", "found"]
    assert table.found.to_dict() == {
        "glyphs": True, "digits": True, "fashion-mnist": True, "cifar10": False, "cifar100": False, "svhn": False,
        "folder:PATH": True, "hub:NAME": True,
    }  # fmt: skip
    (fashion / "t10k-labels-idx1-ubyte").unlink()
    assert not at.data.describe(fashion).set_index("name").found["fashion-mnist"]


@pytest.mark.parametrize("name", ["digits", "glyphs"])
def test_describe_says_what_load_gives(name):
    row = at.data.describe().set_index("name").loc[name]
    options = {"per_class": 1} if name == "glyphs" else {}
    images = load(name, "train", **options)
    assert row.classes == len(images.classes)
    assert row.image_shape == "x".join(map(str, images.image_shape))
    assert row.splits.split(", ")[0] == "train"
    if not options:
        assert row.training_images == len(images)
