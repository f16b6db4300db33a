import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.io import savemat

from attemper.data.mat import read_mat
from attemper.errors import DataError

NUMBERS = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]


@given(
    array=st.sampled_from(NUMBERS).flatmap(
        lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=2, max_dims=4, max_side=4))
    ),
    name=st.sampled_from(["X", "yes", "a_longer_name"]),
    packed=st.booleans(),
)
def test_reads_what_scipy_writes(tmp_path_factory, array, name, packed):
    path = tmp_path_factory.getbasetemp() / "numbers.mat"
    savemat(path, {"first": np.zeros((1, 1)), name: array}, do_compression=packed)
    found = read_mat(path)
    assert found.keys() == {"first", name}
    assert found[name].dtype == array.dtype
    assert np.array_equal(found[name], array, equal_nan=array.dtype.kind == "f")


def test_passes_over_what_is_not_numbers(tmp_path):
    savemat(tmp_path / "mixed.mat", {"text": "abc", "cell": np.array([1, "b"], object), "y": np.eye(2)})
    assert read_mat(tmp_path / "mixed.mat").keys() == {"y"}


def test_another_level_is_named(tmp_path):
    path = tmp_path / "new.mat"
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(512))
    with pytest.raises(DataError, match=r"new\.mat: .* level 5 was expected, found one of level 7\.3 \(HDF5\)"):
        read_mat(path)


@pytest.mark.parametrize(
    ("element", "found"),
    [(struct.pack("<II", 1, 16) + bytes(8), 8), (struct.pack("<HH", 1, 5) + bytes(4), 4)],
)
def test_an_element_that_is_cut_is_refused_though_it_would_be_passed_over(tmp_path, element, found):
    path, size = tmp_path / "cut.mat", {8: 16, 4: 5}[found]
    path.write_bytes(bytes(124) + b"\x00\x01IM" + element)
    with pytest.raises(DataError, match=f"cut.mat is damaged: an element of {size} bytes was expected, found {found}$"):
        read_mat(path)


@pytest.mark.parametrize("packed", [False, True])
def test_no_damage_gets_through_unseen_as_another_error(tmp_path, packed):
    """scipy's reader crashes the process on some of these."""
    path, array = tmp_path / "damaged.mat", np.arange(60, dtype=np.uint8).reshape(3, 4, 5)
    savemat(path, {"X": array}, do_compression=packed)
    whole, generator = path.read_bytes(), np.random.default_rng(0)
    refused = []
    for trial in range(400):
        data = bytearray(whole)
        if trial % 2:
            data = data[: generator.integers(len(data))]
        else:
            data[generator.integers(128, len(data))] ^= generator.integers(1, 256)
        path.write_bytes(data)
        try:
            read_mat(path)
        except DataError as error:
            refused.append(str(error))
    assert len(refused) > 250
    assert all("damaged.mat" in message for message in refused)
