import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.autograd import gradcheck

import attemper as at
from attemper.errors import ArgumentError
from attemper.knob.rows import HeldLogits, RowMoments, bounded, with_sink

INF = math.inf
FIELDS = ("entropy", "logsumexp", "mean_logit", "variance", "length", "max_logit", "min_logit")
entries = st.one_of(st.floats(-50, 50), st.floats(-1e4, 1e4), st.just(-INF))
arrays = hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=entries)
betas = st.floats(0.01, 50)


def reference(logits, beta=1.0, sink=None):
    """Every field by its definition, a row at a time."""
    rows = []
    for row in logits:
        seen = row[row > -INF]
        every = beta * np.append(seen, [] if sink is None else [sink])
        if not len(every):
            rows.append((0, -INF, 0, 0, 0, -INF, INF))
            continue
        top = every.max()
        p = np.exp(every - top)
        total = p.sum()
        p /= total
        mean = (p * every).sum()
        entropy = -sum(q * math.log(q) for q in p if q > 0)
        spread = (p * (every - mean) ** 2).sum()
        rows.append((entropy, top + math.log(total), mean, spread, len(seen), top, every.min()))
    return {name: np.array(values) for name, values in zip(FIELDS, zip(*rows, strict=True), strict=True)}


def check(rows, expected, rtol, atol):
    for name, values in expected.items():
        got = getattr(rows, name)
        # the definition's own sums cancel, by the size of the logits
        loose = 1e3 if name == "variance" else 1
        np.testing.assert_allclose(got, values, rtol=rtol * loose, atol=atol * loose, err_msg=name)


@given(arrays, betas)
def test_every_field_agrees_with_its_definition(logits, beta):
    rows = at.RowStatistics.from_logits(torch.from_numpy(logits))
    check(rows, reference(logits), 1e-9, 1e-9)
    check(rows.at(beta), reference(logits, beta), 1e-9, 1e-8)
    check(rows.at(torch.full((len(logits),), beta / 2)).at(2.0), reference(logits, beta), 1e-6, 1e-4)
    sink = 1.5
    held = HeldLogits.of(torch.from_numpy(logits), torch.full((len(logits),), sink, dtype=torch.float64))
    check(at.RowStatistics(held), reference(logits, 1.0, sink), 1e-9, 1e-9)
    check(at.RowStatistics(held).at(beta), reference(logits, beta, sink), 1e-9, 1e-8)


@given(arrays, betas)
def test_float32_agrees_with_float64(logits, beta):
    single = torch.from_numpy(logits).float()
    rows = at.RowStatistics.from_logits(single).at(beta)
    assert rows.entropy.dtype == rows.variance.dtype == rows.dtype == torch.float32
    expected = reference(single.double().numpy(), float(np.float32(beta)))
    del expected["variance"]
    # 7 digits of the row's largest product
    finite = np.where(logits > -INF, abs(logits), 0)
    check(rows, expected, 1e-5, 1e-5 + 1e-6 * beta * finite.max())


@given(arrays)
def test_sorted_logits(logits):
    expected = -np.sort(-logits, -1)
    rows = at.RowStatistics.from_logits(torch.from_numpy(logits))
    np.testing.assert_allclose(rows.sorted_logits(), expected, rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(rows.at(2.0).sorted_logits(), 2 * expected, rtol=1e-12, atol=1e-10)
    held = HeldLogits.of(torch.from_numpy(logits), torch.full((len(logits),), 0.5, dtype=torch.float64))
    expected = -np.sort(-np.concatenate([logits, np.full((len(logits), 1), 0.5)], -1), -1)
    np.testing.assert_allclose(at.RowStatistics(held).sorted_logits(), expected, rtol=1e-12, atol=1e-10)


def test_a_row_that_sees_nothing():
    logits = torch.full((2, 3), -INF)
    logits[1, 0] = 2.0
    rows = at.RowStatistics.from_logits(logits)
    for each in (rows, rows.at(3.0)):
        assert [getattr(each, name)[0].item() for name in FIELDS] == [0, -INF, 0, 0, 0, -INF, INF]
        assert each.length.tolist() == [0, 1]
    sunk = at.RowStatistics(HeldLogits.of(logits, torch.tensor([-0.5, 2.0])))
    assert [getattr(sunk, name)[0].item() for name in FIELDS] == [0, -0.5, -0.5, 0, 0, -0.5, -0.5]
    assert sunk.entropy[1].item() == pytest.approx(math.log(2))


def test_a_sink_of_minus_infinity_is_none():
    logits = torch.tensor([[1.0, 2.0, 3.0], [-INF, -INF, -INF]], requires_grad=True)
    plain = at.RowStatistics.from_logits(logits)
    sunk = at.RowStatistics(HeldLogits.of(logits, torch.full((2,), -INF)))
    for name in FIELDS:
        torch.testing.assert_close(getattr(sunk, name), getattr(plain, name))
        torch.testing.assert_close(getattr(sunk.at(2.0), name), getattr(plain.at(2.0), name))
    (sunk.entropy + sunk.at(2.0).variance).sum().backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1e6, 1e29])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_and_tiny_logits(size, dtype):
    rows = at.RowStatistics.from_logits(torch.tensor([[size, -size, size, -INF]], dtype=dtype))
    assert rows.entropy.item() == pytest.approx(math.log(2 if size > 1 else 3), abs=1e-5)
    assert rows.length.item() == 3
    for name in FIELDS[:4]:
        assert not getattr(rows, name).isnan().any()
    assert rows.max_logit.item() == pytest.approx(size)


@pytest.mark.parametrize("beta", [0.0, 1e-30, 1e30])
def test_no_beta_overflows_or_makes_a_masked_entry_count(beta):
    rows = at.RowStatistics.from_logits(torch.tensor([[1.0, 1.0, -3.0, -INF]])).at(beta)
    assert rows.entropy.item() == pytest.approx(math.log(2 if beta > 1 else 3))


def test_nan_stays_to_be_seen():
    rows = at.RowStatistics.from_logits(torch.tensor([[math.nan, 1.0], [math.nan, -INF], [INF, 1.0], [0.0, 0.0]]))
    assert rows.entropy.isnan().tolist() == [True, True, True, False]


def test_a_sink_added_to_moments_is_one_more_entry():
    logits, sink = 3 * torch.randn(20, 6, dtype=torch.float64), torch.randn(20, dtype=torch.float64)
    sink[0], sink[1] = 800, -800
    keys = at.RowStatistics.from_logits(logits)
    every = at.RowStatistics.from_logits(torch.cat([logits, sink.unsqueeze(-1)], -1))
    moments = with_sink(RowMoments(keys.entropy, keys.logsumexp, keys.mean_logit, keys.variance), sink)
    for got, name in zip(moments, FIELDS, strict=False):
        torch.testing.assert_close(got, getattr(every, name), rtol=1e-10, atol=1e-10)


def test_gradients():
    logits = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    beta = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    sink = torch.randn(3, dtype=torch.float64, requires_grad=True)

    def fields(logits, beta, sink):
        masked = torch.cat([logits, torch.full((3, 2), -INF, dtype=torch.float64)], -1)
        rows = at.RowStatistics(HeldLogits.of(masked, sink))
        there = rows.at(beta)
        variance = there.variance
        return (rows.entropy, variance, there.entropy, there.logsumexp, there.mean_logit, there.sorted_logits()[:, :6])

    assert gradcheck(fields, (logits, beta, sink))


def test_masked_rows_leave_gradients_finite():
    logits = torch.tensor([[-INF, -INF], [1.0, -INF]], requires_grad=True)
    rows = at.RowStatistics.from_logits(logits).at(2.0)
    variance = rows.variance
    (variance + rows.entropy + rows.mean_logit).sum().backward()
    assert logits.grad[0].tolist() == [0, 0] and logits.grad.isfinite().all()


def test_entropy_falls_by_the_variance_as_beta_rises():
    rows = at.RowStatistics.from_logits(2 * torch.randn(50, 30, dtype=torch.float64))
    log_beta = torch.linspace(-1, 1, 50, dtype=torch.float64, requires_grad=True)
    entropy = rows.at(log_beta.exp()).entropy
    (slope,) = torch.autograd.grad(entropy.sum(), log_beta)
    torch.testing.assert_close(slope, -rows.at(log_beta.exp()).variance)


def test_any_dimension_and_half_precision():
    logits = torch.randn(4, 5, 6)
    for dim in (0, 1, -1):
        torch.testing.assert_close(at.RowStatistics.from_logits(logits, dim).entropy, at.entropy(logits, dim=dim))
    half = logits.bfloat16()
    assert torch.equal(at.RowStatistics.from_logits(half).entropy, at.RowStatistics.from_logits(half.float()).entropy)
    assert at.RowStatistics.from_logits(half).dtype == torch.float32
    assert at.RowStatistics.from_logits(logits.double()).dtype == torch.float64


def test_variance_and_entropy_come_from_one_pass():
    passes = []

    class Counting(HeldLogits):
        def moments(self, beta, variance):
            passes.append(variance)
            return super().moments(beta, variance)

    rows = at.RowStatistics(Counting.of(torch.randn(2, 3)))
    assert rows.shape == (2,) and rows.length.tolist() == [3, 3] and rows.route == "held"
    there = rows.at(2.0)
    assert passes == []
    _ = there.variance, there.entropy, there.logsumexp, there.mean_logit
    assert passes == [True]
    _ = rows.entropy, rows.logsumexp
    assert passes == [True, False]


def test_bounded():
    assert bounded(torch.tensor([0.0, 1.0, 1e30])).tolist() == pytest.approx([1e-20, 1.0, 1e8])


def test_what_is_refused():
    with pytest.raises(ArgumentError, match="^logits: a tensor of floating-point numbers is accepted"):
        at.RowStatistics.from_logits(torch.zeros(2, 2, dtype=torch.long))
    with pytest.raises(ArgumentError, match="^logits: at least one entry a row is accepted, but \\(2, 0\\) came"):
        at.RowStatistics.from_logits(torch.zeros(2, 0))
    for dim in (2, -3, "a", None):
        with pytest.raises(ArgumentError, match="^dim: a dimension of logits, which has 2,"):
            at.RowStatistics.from_logits(torch.zeros(2, 2), dim)
    with pytest.raises(
        ArgumentError, match="^beta: a shape that broadcasts to \\(2,\\) is accepted, but \\(3,\\) came"
    ):
        at.RowStatistics.from_logits(torch.zeros(2, 2)).at(torch.ones(3))
