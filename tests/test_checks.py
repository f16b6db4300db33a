import numpy as np
import pytest

from attemper.checks import choices, positive, shape, whole
from attemper.errors import ArgumentError


def test_what_is_accepted_becomes_a_python_number():
    assert type(whole("n", np.int64(3))) is int
    assert type(positive("x", 2)) is float
    assert positive("x", np.float32(0.5)) == 0.5
    assert shape([1, np.int32(2), 3]) == (1, 2, 3)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1", None])
def test_no_whole_number(value):
    with pytest.raises(ArgumentError) as refused:
        whole("n", value)
    assert str(refused.value) == f"n: a whole number from 1 is accepted, but {value!r} came"


@pytest.mark.parametrize("value", [0, -0.5, float("inf"), float("nan"), True, "1", None, 1j])
def test_no_positive_number(value):
    with pytest.raises(ArgumentError) as refused:
        positive("x", value)
    assert str(refused.value) == f"x: a finite number above 0 is accepted, but {value!r} came"


@pytest.mark.parametrize("value", [None, 3, "333", (1, 2), (1, 2, 3, 4), (1, 2, 0), (1, True, 3), (1, 2.0, 3)])
def test_no_shape(value):
    with pytest.raises(ArgumentError, match=r"^image_shape: \(channels, height, width\), whole numbers from 1, is acc"):
        shape(value)


def test_choices():
    assert choices(["a"]) == "a"
    assert choices((1, 2, 3)) == "1, 2 or 3"
