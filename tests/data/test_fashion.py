import gzip
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attemper.data import load
from attemper.data.fashion import read_idx
from attemper.errors import DataError

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")


def idx(array):
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def write(folder, images, labels, packed=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(NAMES, (images, np.array(labels, np.uint8)), strict=True):
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (folder / name).write_bytes(idx(array))
    return folder


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("folder", [".", "fashion-mnist", "FashionMNIST/raw"])
def test_reads_each_pixel_from_any_of_its_places(tmp_path, draw, through_loader, folder, packed):
    images = draw(5, 28, 28)
    write(tmp_path / folder, images, [3, 0, 9, 9, 1], packed)
    found = load("fashion-mnist", "train", tmp_path)
    pixels, labels = through_loader(found)
    assert np.array_equal(pixels.mul(255).round().byte().numpy(), images[:, None])
    assert labels.tolist() == [3, 0, 9, 9, 1]
    assert found.classes[9] == "Ankle boot"


@given(shape=st.tuples(*[st.integers(1, 6)] * 3), dimensions=st.sampled_from([1, 3]), packed=st.booleans())
def test_idx_round_trip(tmp_path_factory, shape, dimensions, packed):
    array = np.random.default_rng(sum(shape)).integers(0, 256, shape[:dimensions], dtype=np.uint8)
    path = tmp_path_factory.getbasetemp() / ("array.gz" if packed else "array")
    path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    found = read_idx(path, dimensions)
    assert found.dtype == torch.uint8
    assert np.array_equal(found.numpy(), array)


def damaged(change):
    images = idx(np.zeros((2, 28, 28), np.uint8))
    return change(images)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            damaged(lambda b: b[:-1]),
            r"images-idx3-ubyte: 1584 bytes were expected for \[2, 28, 28\] values, found 1583 bytes",
        ),
        (damaged(lambda b: b + b"\0"), "1584 bytes were expected .*, found 1585 bytes"),
        (damaged(lambda b: b[:10]), "a header of 16 bytes was expected, found 10 bytes"),
        (b"", "a header of 16 bytes was expected, found 0 bytes"),
        (damaged(lambda b: b"\0\0\x0d\x03" + b[4:]), "magic number 0x00000803 was expected, found 0x00000d03"),
        (idx(np.zeros((2, 28, 3), np.uint8)), "images-idx3-ubyte: images of 28 x 28 were expected, found 28 x 3"),
        (idx(np.zeros((0, 28, 28), np.uint8)), "labels-idx1-ubyte: 0 labels were expected, one an image, found 2"),
    ],
)
def test_damaged_images_are_refused(tmp_path, data, message):
    write(tmp_path, np.zeros((2, 28, 28), np.uint8), [0, 1])
    (tmp_path / NAMES[0]).write_bytes(data)
    with pytest.raises(DataError, match=message):
        load("fashion-mnist", "train", tmp_path)


def test_damaged_labels_are_refused(tmp_path):
    images = np.zeros((2, 28, 28), np.uint8)
    write(tmp_path, images, [0, 10])
    with pytest.raises(DataError, match="labels-idx1-ubyte: labels from 0 to 9 were expected, found some from 0 to 10"):
        load("fashion-mnist", "train", tmp_path)
    write(tmp_path, images, [0, 1, 2])
    with pytest.raises(DataError, match="labels-idx1-ubyte: 2 labels were expected, one an image, found 3"):
        load("fashion-mnist", "train", tmp_path)
    write(tmp_path, images[:0], [])
    with pytest.raises(DataError, match="fashion-mnist, split 'train': there is no image in it"):
        load("fashion-mnist", "train", tmp_path)


@pytest.mark.parametrize("change", [lambda b: b[:-9], lambda b: b"junk" + b, lambda b: b[:20] + b"\xff" * 9 + b[29:]])
def test_damaged_gzip_is_refused(tmp_path, draw, change):
    write(tmp_path, draw(2, 28, 28), [0, 1], packed=True)
    path = tmp_path / f"{NAMES[0]}.gz"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz cannot be read: "):
        load("fashion-mnist", "train", tmp_path)


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(DataError) as caught:
        load("fashion-mnist", "test", tmp_path)
    for part in (
        "Fashion-MNIST is not there",
        "t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte",
        str(tmp_path / "fashion-mnist"),
        str(tmp_path / "FashionMNIST/raw"),
        "https://github.com/zalandoresearch/fashion-mnist",
        "ATTEMPER_DATA",
    ):
        assert part in str(caught.value)
