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
from attemper.knob.rows import HeldLogits

INF = math.inf
entries = st.one_of(st.floats(-20, 20), st.integers(-3, 3).map(float), st.just(-INF))
arrays = hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 12)), elements=entries)


def rows_of(logits):
    return at.RowStatistics.from_logits(logits)


def entropy_of(row, beta):
    seen = beta * row[row > -INF]
    if not len(seen):
        return 0.0
    p = np.exp(seen - seen.max())
    p /= p.sum()
    return -sum(q * math.log(q) for q in p if q > 0)


def by_bisection(row, nats, most=64.0):
    """The least beta in [1, most], by the definition; `most` where there is none."""
    if entropy_of(row, 1) <= nats:
        return 1.0
    if entropy_of(row, most) > nats:
        return most
    low, high = 1.0, most
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if entropy_of(row, middle) <= nats else (middle, high)
    return high


class Counting(HeldLogits):
    """Logits that count the passes over them."""

    passes = 0

    def moments(self, beta, variance):
        assert variance, "the entropy was asked for before the variance: two passes for one"
        self.passes += 1
        return super().moments(beta, variance)


def realistic(length):
    """Rows of every kind that attention makes: spread, heavy-tailed, with an outlier, in clusters."""
    normal = torch.randn(50, length)
    outlier, clusters, few = normal.clone(), 0.05 * normal, 0.5 * normal
    outlier[:, 0] = torch.linspace(4, 20, 50)
    clusters[:, : length // 4] += torch.linspace(1, 10, 50).unsqueeze(-1)
    few[:, :4] += torch.linspace(4, 15, 50).unsqueeze(-1)
    heavy = torch.distributions.StudentT(2.0).sample((50, length))
    return torch.cat(
        [normal, 2 * normal, 4 * normal, 8 * normal, heavy, outlier, clusters, few, 6 * torch.rand(50, length)]
    )


@given(arrays, st.floats(0.05, 3), st.sampled_from([2.0, 64.0]))
def test_it_is_the_least_beta_that_reaches_the_target(logits, nats, most):
    rows = rows_of(torch.from_numpy(logits))
    beta = at.EntropyTarget(nats, max_beta=most, max_passes=60).inverse_temperature(rows)
    assert ((beta >= 1) & (beta <= most)).all()
    reached = rows.at(beta).entropy
    for row, got, entropy in zip(logits, beta.tolist(), reached.tolist(), strict=True):
        expected = by_bisection(row, nats, most)
        if expected == 1 and entropy_of(row, 1) <= nats - 1e-9:
            assert got == 1
        elif expected == most:
            # as good as the tolerance, on a row whose entropy hardly falls
            assert got == most or abs(entropy_of(row, got) - nats) <= 1e-3
        else:
            assert entropy <= nats + 1e-3
            assert abs(entropy - nats) <= 1e-3 or got == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("length", "nats"), [(16, 0.1), (16, 1.0), (256, 0.1), (256, 0.5), (256, 2.0), (2048, 0.5), (2048, 4.0)]
)
def test_within_eight_passes(length, nats):
    logits = realistic(length)
    held = Counting.of(logits)
    rows = at.RowStatistics(held)
    beta = at.EntropyTarget(nats).inverse_temperature(rows)
    assert held.passes <= 8
    rows = rows_of(logits)
    before, after, most = (rows.at(b).entropy for b in (1.0, beta, 64.0))
    assert (beta[before <= nats] == 1).all()
    assert (beta[most > nats + 1e-3] == 64).all()
    asked = (before > nats) & (most <= nats)
    assert (after[asked] <= nats + 1.1e-3).all()
    assert ((after - nats).abs()[asked] <= 1.1e-3).float().mean() > 0.99


def passes(logits, nats):
    held = Counting.of(logits)
    at.EntropyTarget(nats).inverse_temperature(at.RowStatistics(held))
    return held.passes


def test_easy_rows_take_few_passes():
    # the first guess is exact for many normal logits
    assert passes(0.1 * torch.randn(100, 4096), 8.31) == 2
    assert passes(torch.randn(100, 4096), 7.5) == 3
    assert passes(2 * torch.randn(200, 1024), 4.0) <= 5
    assert passes(torch.randn(200, 3), 1.2) == 1
    # ties, that no beta tells apart
    assert passes(torch.zeros(3, 7), 1.0) == 2


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_a_row_not_solved_in_time_is_too_sharp_rather_than_too_flat(passes):
    logits = realistic(256)
    held = Counting.of(logits)
    rows = at.RowStatistics(held)
    beta = at.EntropyTarget(0.7, max_passes=passes).inverse_temperature(rows)
    assert held.passes == passes
    rows = rows_of(logits)
    assert (rows.at(beta).entropy[rows.at(64.0).entropy <= 0.7] <= 0.7011).all()


def test_a_row_is_solved_the_same_whatever_stands_beside_it():
    logits = realistic(64)
    policy = at.EntropyTarget(1.0)
    together = policy.inverse_temperature(rows_of(logits))
    alone = torch.cat([policy.inverse_temperature(rows_of(row)) for row in logits.split(7)])
    torch.testing.assert_close(together, alone, rtol=1e-6, atol=0)


def test_rows_that_see_nothing_ties_and_sinks():
    logits = torch.tensor([[-INF, -INF, -INF], [1.0, -INF, -INF], [1.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    policy = at.EntropyTarget(0.3)
    assert policy.inverse_temperature(rows_of(logits)).tolist()[:3] == [1, 1, 64]
    held = HeldLogits.of(logits, torch.tensor([0.0, 0.9, 2.0, 2.0]))
    rows = at.RowStatistics(held)
    beta = policy.inverse_temperature(rows)
    assert beta.tolist()[::3] == [1, 64]
    assert rows.at(beta).entropy[1:3].tolist() == pytest.approx([0.3, 0.3], abs=1e-3)


def test_the_gradient_is_the_implicit_one():
    logits = 2 * torch.randn(5, 7, dtype=torch.float64)
    logits[4] *= 5
    wall = torch.full((5, 2), -INF, dtype=torch.float64)
    logits.requires_grad_()
    policy = at.EntropyTarget(0.8)

    def beta(values):
        return policy.inverse_temperature(rows_of(torch.cat([values, wall], -1)))

    found = beta(logits)
    assert (found > 1).sum() >= 3
    assert gradcheck(beta, logits)
    # the entropy stays where it is, however the logits move
    entropy = rows_of(logits).at(found).entropy
    (slope,) = torch.autograd.grad(entropy[found > 1].sum(), logits)
    assert slope.abs().max() < 1e-6


def test_no_gradient_where_beta_is_at_a_limit():
    logits = torch.tensor([[3.0, 0.0, 0.0], [1.0, 1.0, 0.0], [2.0, 1.0, 0.0], [-INF, -INF, -INF]], requires_grad=True)
    beta = at.EntropyTarget(0.6).inverse_temperature(rows_of(logits))
    beta.sum().backward()
    assert beta.tolist()[:2] == [1, 64] and beta[3] == 1
    assert logits.grad.abs().sum(-1).bool().tolist() == [False, False, True, False]
    assert logits.grad.isfinite().all()


def test_the_value_does_not_depend_on_whether_a_gradient_is_wanted():
    logits = 2 * torch.randn(30, 40)
    policy = at.EntropyTarget(1.0)
    wanted = policy.inverse_temperature(rows_of(logits.clone().requires_grad_()))
    assert wanted.requires_grad
    torch.testing.assert_close(wanted.detach(), policy.inverse_temperature(rows_of(logits)), rtol=1e-4, atol=0)


def test_it_compiles_to_the_same_numbers():
    logits, policy = 2 * torch.randn(30, 40), at.EntropyTarget(1.0)
    compiled = torch.compile(lambda x: policy.inverse_temperature(rows_of(x)), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits), policy.inverse_temperature(rows_of(logits)))


def test_it_runs_under_vmap():
    logits, policy = 2 * torch.randn(4, 5, 40), at.EntropyTarget(1.0)
    mapped = torch.vmap(lambda x: policy.inverse_temperature(rows_of(x)))(logits)
    torch.testing.assert_close(mapped, policy.inverse_temperature(rows_of(logits)))


def test_nan_stays_to_be_seen():
    logits = torch.tensor([[math.nan, 0.0, 0.0], [1.0, 0.0, 0.0]], requires_grad=True)
    beta = at.EntropyTarget(0.9).inverse_temperature(rows_of(logits))
    assert beta[1] > 1 and beta[1].isfinite()
    assert rows_of(logits).at(beta.detach()).entropy[0].isnan()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nats": 0}, "nats: a finite number above 0"),
        ({"nats": None}, "nats: a finite number above 0"),
        ({"nats": 1.0, "max_beta": 0.5}, "max_beta: a finite number from 1"),
        ({"nats": 1.0, "max_beta": INF}, "max_beta: a finite number above 0"),
        ({"nats": 1.0, "max_passes": 0}, "max_passes: a whole number from 1"),
        ({"nats": 1.0, "max_passes": 2.5}, "max_passes: a whole number from 1"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ArgumentError, match=f"^{message}"):
        at.EntropyTarget(**arguments)
