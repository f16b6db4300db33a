import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attemper as at
from attemper.errors import ArgumentError, DataError


def of_known_spectrum(values, n, seed=0):
    """Centred rows (n, width) whose covariance has just these eigenvalues."""
    generator = np.random.default_rng(seed)
    values = np.asarray(values, float)
    left = generator.standard_normal((n, len(values)))
    left = np.linalg.qr(left - left.mean(0))[0]
    right = np.linalg.qr(generator.standard_normal((len(values), len(values))))[0]
    return torch.from_numpy(left * np.sqrt(values * n) @ right.T)


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=8), st.integers(0, 1000))
def test_the_spectrum_is_the_one_that_was_put_in(values, seed):
    x = of_known_spectrum(values, 40, seed)
    expected = sorted(values, reverse=True)
    np.testing.assert_allclose(at.spectrum(x), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(at.spectrum(at.Moments(len(values)).update(x)), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(at.spectrum(x, of="matrix"), np.sqrt(40 * np.array(expected)), rtol=1e-9, atol=1e-6)


def test_rank_counts_what_exceeds_the_threshold():
    x = of_known_spectrum([1, 0.5, 2e-3, 1.1e-3, 0.9e-3, 1e-5], 50)
    for given_ in (x, at.Moments(6).update(x), x + 1000):
        assert at.numerical_rank(given_) == 4
        assert at.numerical_rank(given_, 1e-2) == 2
        assert at.numerical_rank(given_, 1e-6) == 6
    # 1e-3 of the singular values is 1e-6 of the eigenvalues
    for given_ in (x, at.Moments(6).update(x)):
        assert at.numerical_rank(given_, 1e-3, of="matrix") == 6
        assert at.numerical_rank(given_, 0.0316, of="matrix") == 4


def test_the_mean_is_a_direction_of_the_matrix_alone():
    x = of_known_spectrum([1.0, 1.0], 20) + 5
    assert at.numerical_rank(torch.full((20, 3), 5.0), of="matrix") == 1
    assert at.numerical_rank(torch.full((20, 3), 5.0)) == 0
    assert at.spectrum(x, of="matrix")[0] > 20


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e8, -1e-8])
def test_constant_columns_are_no_directions(constant):
    x = torch.full((1000, 5), constant)
    assert at.numerical_rank(x) == 0
    assert at.numerical_rank(at.Moments(5).update(x[:7]).update(x[7:])) == 0
    x[:, 2] += constant * torch.randn(1000) + (constant == 0) * torch.randn(1000)
    assert at.numerical_rank(x) == 1


@pytest.mark.parametrize("n", [3, 7, 49, 999])
def test_what_rounding_leaves_of_a_constant_is_no_direction_and_a_little_more_is(n):
    constants = torch.tensor([1 / 3, 0.1, 0.7, 1e8 / 3], dtype=torch.float64).expand(n, -1)
    assert at.numerical_rank(constants) == 0
    moments = at.Moments(4)
    for part in constants.split(2):
        moments.update(part)
    assert at.numerical_rank(moments) == 0
    little = torch.ones(n, 2, dtype=torch.float64)
    little[::2, 1] += 1e-12
    assert at.numerical_rank(little) == 1


def test_fewer_rows_than_columns_and_a_single_row():
    x = torch.randn(4, 9)
    assert at.spectrum(x).shape == (9,)
    assert at.numerical_rank(x) == 3
    np.testing.assert_allclose(at.spectrum(x), at.spectrum(at.Moments(9).update(x)), atol=1e-12)
    assert at.numerical_rank(x[:1]) == 0
    assert at.numerical_rank(x[:1], of="matrix") == 1


def test_what_is_refused():
    for threshold in (0, 1, -1, math.nan, "1e-3"):
        with pytest.raises(ArgumentError, match=r"^threshold: a number within \(0, 1\) is accepted"):
            at.numerical_rank(torch.randn(3, 2), threshold)
    with pytest.raises(ArgumentError, match="^of: 'covariance' or 'matrix' is accepted, but 'gram' came"):
        at.numerical_rank(torch.randn(3, 2), of="gram")
    for wrong in (torch.zeros(3), torch.zeros(0, 2), torch.zeros(3, 0), torch.zeros(2, 2, 2), [[1.0]]):
        with pytest.raises(ArgumentError, match=r"^x: a tensor \(n, width\) of one row at least, or Moments"):
            at.spectrum(wrong)
    with pytest.raises(DataError, match="^x: finite numbers are accepted"):
        at.spectrum(torch.tensor([[1.0, math.nan]]))
