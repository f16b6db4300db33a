import numpy as np
import pytest
from scipy.io import savemat

from attemper.data import load
from attemper.errors import DataError


def write(path, images, labels):
    """images (n, 3, 32, 32)."""
    savemat(path, {"X": images.transpose(2, 3, 1, 0), "y": np.array(labels, np.uint8)[:, None]}, do_compression=True)
    return path


@pytest.mark.parametrize("split", ["train", "test", "extra"])
def test_reads_each_pixel_and_ten_is_zero(tmp_path, draw, through_loader, split):
    images = draw(4, 3, 32, 32)
    write(tmp_path / f"{split}_32x32.mat", images, [1, 10, 9, 5])
    pixels, labels = through_loader(load("svhn", split, tmp_path))
    assert np.array_equal(pixels.mul(255).round().byte().numpy(), images)
    assert labels.tolist() == [1, 0, 9, 5]


def test_may_lie_in_a_folder_of_its_name(tmp_path, draw):
    (tmp_path / "svhn").mkdir()
    write(tmp_path / "svhn" / "test_32x32.mat", draw(1, 3, 32, 32), [3])
    assert load("svhn", "test", tmp_path).classes[3] == "3"


@pytest.mark.parametrize("keep", [0, 60, 128, 200, 2000])
def test_a_truncated_file_is_refused(tmp_path, draw, keep):
    path = write(tmp_path / "test_32x32.mat", draw(2, 3, 32, 32), [1, 2])
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"test_32x32\.mat"):
        load("svhn", "test", tmp_path)


def test_a_file_that_is_no_mat_is_refused(tmp_path):
    (tmp_path / "test_32x32.mat").write_bytes(b"<html>not found</html>" * 40)
    with pytest.raises(DataError, match=r"test_32x32\.mat: a \.mat file of level 5 was expected, found 880 bytes"):
        load("svhn", "test", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"X": np.zeros((32, 32, 3, 2), np.uint8)}, "the arrays X and y were expected, y not found"),
        (
            {"X": np.zeros((32, 3, 32, 2), np.uint8), "y": [[1], [2]]},
            r"X of bytes with the shape \(32, 32, 3, images\) was expected, found uint8 \(32, 3, 32, 2\)",
        ),
        ({"X": np.zeros((32, 32, 3, 2)), "y": [[1], [2]]}, r"was expected, found float64 \(32, 32, 3, 2\)"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": [[1]]}, "2 labels were expected, one an image, found 1"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": [[1], [np.nan]]}, "labels from 1 to 10 .* found nan"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": [[0], [1]]}, "labels from 1 to 10 were expected, found 0"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": [[1], [11]]}, "labels from 1 to 10 were expected, found 11"),
        ({"X": np.array([["a", "b"]], object), "y": [[1], [2]]}, "the arrays X and y were expected, X not found"),
        (
            {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([["a", "b"]], object)},
            "the arrays X and y were expected, y not found",
        ),
    ],
)
def test_other_contents_are_refused(tmp_path, content, message):
    savemat(tmp_path / "test_32x32.mat", content)
    with pytest.raises(DataError, match=r"test_32x32\.mat: .*" + message):
        load("svhn", "test", tmp_path)


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(DataError, match=r"looked for extra_32x32\.mat in .*svhn\. Get .*housenumbers"):
        load("svhn", "extra", tmp_path)
