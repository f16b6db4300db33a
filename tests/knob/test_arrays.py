import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import attemper as at
from attemper.errors import ArgumentError

INF = math.inf
PUBLISHED = (-0.037, 0.481, -2.3, 4.917, -1.791)
entries = st.one_of(st.floats(-30, 30), st.floats(-1e4, 1e4), st.just(-INF))
arrays = hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 12)), elements=entries)


def shares(logits):
    seen = logits > -INF
    if not seen.any():
        return np.zeros_like(logits)
    powers = np.exp(logits - logits[seen].max())
    return powers / powers.sum()


def reference(logits, coefficients=PUBLISHED):
    """The published adaptive softmax, a row at a time and by its definition."""
    result = []
    for row in logits:
        p = shares(row)
        entropy = -sum(q * math.log(q) for q in p if q > 0)
        polynomial = sum(c * entropy**k for k, c in enumerate(reversed(coefficients)))
        beta = max(polynomial, 1) if entropy > 0.5 else 1
        result.append(shares(beta * row))
    return np.array(result)


@given(arrays)
def test_it_is_the_published_softmax(logits):
    expected = reference(logits)
    np.testing.assert_allclose(at.adaptive_softmax(logits), expected, rtol=1e-7, atol=1e-12)
    tensor = torch.from_numpy(logits)
    np.testing.assert_allclose(at.adaptive_softmax(tensor), expected, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(at.adaptive_softmax(tensor.T, dim=0).T, expected, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(
        at.adaptive_softmax(tensor.float()), reference(tensor.float().double().numpy()), atol=1e-4
    )
    plain = np.array([shares(row) for row in logits])
    np.testing.assert_allclose(at.adaptive_softmax(logits, None), plain, rtol=1e-9, atol=1e-15)


def test_coefficients_are_not_ascending():
    """A public copy evaluates them from the lowest degree up: then nothing at all is sharpened."""
    logits = np.log(np.arange(1.0, 31))[None]
    np.testing.assert_allclose(at.adaptive_softmax(logits), reference(logits), rtol=1e-9)
    wrong = reference(logits, PUBLISHED[::-1])
    assert abs(at.adaptive_softmax(logits) - wrong).max() > 0.03


def test_beta_is_not_a_temperature():
    """A public copy divides by it: then what should be sharpened is flattened."""
    logits = torch.log(torch.arange(1.0, 31))
    sharp = at.adaptive_softmax(logits)
    assert sharp.max() > 1.5 * torch.softmax(logits, -1).max()
    beta = at.Adaptive().inverse_temperature(at.RowStatistics.from_logits(logits))
    assert beta > 2
    torch.testing.assert_close(sharp, torch.softmax(beta * logits, -1))
    assert at.adaptive_softmax(logits, at.Constant(0.5)).max() > at.adaptive_softmax(logits, at.Constant(2.0)).max()


@pytest.mark.parametrize("size", [1e-3, 1.0, 100.0, 1e4])
def test_masked_entries_are_not_made_real(size):
    """A public copy clamps logits to +-50: then masked entries take part."""
    logits = size * torch.randn(3, 6)
    logits[:, 4:] = -INF
    logits[1] -= 1e4
    logits[2] = -INF
    for policy in (at.Adaptive(), None, at.Constant(100.0), at.Constant(1e-3), at.EntropyTarget(0.3), at.SSMax(1.0)):
        result = at.adaptive_softmax(logits, policy)
        assert (result[:, 4:] == 0).all() and (result[2] == 0).all()
        torch.testing.assert_close(result[:2].sum(-1), torch.ones(2))
        torch.testing.assert_close(result[:2, :4], at.adaptive_softmax(logits[:2, :4], policy))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    logits = (3 * torch.randn(20, 64)).to(dtype)
    for policy in (at.Adaptive(), at.EntropyTarget(1.0)):
        result = at.adaptive_softmax(logits, policy)
        assert result.dtype == dtype
        assert torch.equal(result, at.adaptive_softmax(logits.float(), policy).to(dtype))


def test_gradients():
    logits = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    wall = torch.tensor([[-INF, -INF], [-INF, -INF], [-INF, -INF]], dtype=torch.float64)
    for policy in (at.Adaptive(), at.EntropyTarget(0.7), at.CriticalScale(2.0), at.Constant(0.5), at.LogLength(2)):
        assert torch.autograd.gradcheck(lambda x, p=policy: at.adaptive_softmax(torch.cat([x, wall], -1), p), logits)
    masked = torch.full((2, 3), -INF)
    masked[0, :2] = torch.tensor([0.3, 0.1])
    masked.requires_grad_()
    at.adaptive_softmax(masked).square().sum().backward()
    assert masked.grad.isfinite().all() and masked.grad[1].tolist() == [0, 0, 0] and masked.grad[0, 0] != 0


def test_it_compiles_to_the_same_numbers():
    logits = 2 * torch.randn(5, 30)
    compiled = torch.compile(at.adaptive_softmax, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits), at.adaptive_softmax(logits))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numpy(dtype):
    logits = (2 * np.random.default_rng(0).standard_normal((4, 3, 30))).astype(dtype)
    before = logits.copy()
    logits.flags.writeable = False
    result = at.adaptive_softmax(logits)
    assert type(result) is np.ndarray and result.dtype == dtype and result.flags.writeable
    expected = at.adaptive_softmax(torch.from_numpy(before))
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(logits, before)
    for view in (logits[::-1, :, ::-1], logits[::2, 1], logits.transpose(2, 0, 1)):
        np.testing.assert_array_equal(at.adaptive_softmax(view), at.adaptive_softmax(torch.from_numpy(view.copy())))
    assert at.adaptive_softmax(logits[:0]).shape == (0, 3, 30)
    np.testing.assert_array_equal(
        at.adaptive_softmax(logits, dim=1), at.adaptive_softmax(torch.from_numpy(before), dim=1)
    )


@pytest.fixture
def jax():
    # not before it is needed: it starts threads, and other tests fork
    import jax

    return jax


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_jax(name, jax):
    jnp = jax.numpy
    dtype = getattr(jnp, name)
    logits = 2 * jax.random.normal(jax.random.key(0), (4, 30), dtype)
    logits = logits.at[0, 5:].set(-jnp.inf).at[1].set(-jnp.inf)
    result = at.adaptive_softmax(logits)
    assert isinstance(result, jax.Array) and result.dtype == dtype and result.device == logits.device
    expected = at.adaptive_softmax(torch.from_numpy(np.array(logits.astype(jnp.float32))))
    np.testing.assert_allclose(
        result.astype(jnp.float32), expected, rtol=1e-2 if dtype == jnp.bfloat16 else 1e-3, atol=1e-6
    )
    assert (result[0, 5:] == 0).all() and (result[1] == 0).all()


@pytest.mark.parametrize(
    "transformed",
    [
        lambda jax: jax.jit(at.adaptive_softmax),
        lambda jax: jax.grad(lambda x: at.adaptive_softmax(x).sum()),
        lambda jax: jax.vmap(at.adaptive_softmax),
    ],
    ids=["jit", "grad", "vmap"],
)
def test_within_a_transformation_of_jax_it_says_so(transformed, jax):
    with pytest.raises(
        ArgumentError, match=r"^logits: .*within jax.jit or jax.grad there are none yet.*Tracer of float32"
    ):
        transformed(jax)(jax.numpy.zeros((2, 3)))


def test_whole_numbers_of_jax_are_refused(jax):
    with pytest.raises(ArgumentError, match="^logits: a tensor of floating-point numbers is accepted, but torch.int32"):
        at.adaptive_softmax(jax.numpy.zeros((2, 3), int))


class Foreign:
    """An array of a library that gives no more than the standard asks for."""

    def __init__(self, values):
        self.values = values

    def __array_namespace__(self):
        return type(self)

    @classmethod
    def asarray(cls, array, copy=None):
        assert copy
        return cls(array.values.copy())

    @classmethod
    def from_dlpack(cls, array):
        return cls(np.from_dlpack(array))

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


def test_any_library_of_the_array_api():
    result = at.adaptive_softmax(Foreign(np.array([[1.0, 2.0, 4.0]])[:, ::-1]))
    assert isinstance(result, Foreign)
    np.testing.assert_array_equal(result.values, at.adaptive_softmax(np.array([[4.0, 2.0, 1.0]])))


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (np.zeros((2, 3), int), "logits: a tensor of floating-point numbers is accepted, but torch.int64 came"),
        (torch.zeros(2, 3, dtype=torch.int), "logits: a tensor of floating-point numbers"),
        (np.zeros((2, 3), bool), "logits: a tensor of floating-point numbers"),
        (np.zeros((2, 3), complex), "logits: a tensor of floating-point numbers"),
        (np.zeros(3, ">f8"), "logits: .* DLPack can hand over .*, but 'ndarray of >f8' came"),
        (np.zeros(3, np.longdouble), "logits: .* DLPack can hand over"),
        (np.array(["a"]), "logits: .* DLPack can hand over"),
        (np.ma.array([1.0, 2.0], mask=[True, False]), "logits: an array with -inf where entries are masked"),
        (np.zeros(()), "dim: a dimension of logits, which has 0,"),
        (torch.zeros(()), "dim: a dimension of logits, which has 0,"),
        (np.float64(1.0), "dim: a dimension of logits, which has 0,|logits: a tensor or an array"),
        (np.zeros((2, 0)), "logits: at least one entry a row"),
        ([0.0, 1.0], "logits: a tensor or an array of floating-point numbers"),
        (None, "logits: a tensor or an array of floating-point numbers"),
        (np.ndarray, "logits: a tensor or an array of floating-point numbers"),
    ],
)
def test_logits_refused(logits, message):
    with pytest.raises(ArgumentError, match=f"^({message})"):
        at.adaptive_softmax(logits)


def test_dimensions_and_policies_refused():
    for dim in (2, -3, None, "a", 1.0):
        with pytest.raises(ArgumentError, match="^dim: a dimension of logits, which has 2,"):
            at.adaptive_softmax(np.zeros((2, 2)), dim=dim)
    for policy in (2.0, at.Constant, "adaptive", torch.ones(1)):
        with pytest.raises(ArgumentError, match="^policy: a policy"):
            at.adaptive_softmax(torch.zeros(2, 2), policy)
