import copy
import math
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn
from torch.autograd import gradcheck

import attemper as at
from attemper.errors import ArgumentError
from attemper.knob.policies import switch_off
from attemper.knob.rows import HeldLogits

INF = math.inf
entries = st.one_of(st.floats(-20, 20), st.just(-INF))
arrays = hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 12)), elements=entries)
PUBLISHED = (-0.037, 0.481, -2.3, 4.917, -1.791)


def rows_of(logits):
    return at.RowStatistics.from_logits(torch.as_tensor(logits))


def uniform(*lengths):
    """Rows of equal logits, as many visible as asked for."""
    logits = torch.full((len(lengths), max(lengths)), -INF, dtype=torch.float64)
    for row, length in zip(logits, lengths, strict=True):
        row[:length] = 0
    return rows_of(logits)


class LengthAlone:
    """Rows that are asked for no more than how many there are and how long."""

    shape, layer, first_head, dtype, device = torch.Size((2, 3)), None, 0, torch.float32, torch.device("cpu")
    length = torch.tensor([[0, 1, 2], [16, 8191, 8192]])

    def __getattr__(self, name):
        raise AssertionError(f"{name} costs a pass")


def entropy_of(row):
    seen = row[row > -INF]
    if not len(seen):
        return 0.0
    p = np.exp(seen - seen.max())
    p /= p.sum()
    return -sum(q * math.log(q) for q in p if q > 0)


@pytest.mark.parametrize("temperature", [0.25, 1, 3.0, np.float32(2)])
def test_constant_is_one_over_the_temperature(temperature):
    beta = at.Constant(temperature).inverse_temperature(LengthAlone())
    assert torch.equal(beta, torch.full((2, 3), 1 / temperature))
    assert at.Constant(temperature).needs == ()


def test_the_type_of_beta_is_that_of_the_rows():
    for dtype, expected in ((torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64,) * 2):
        rows = rows_of(torch.randn(2, 3).to(dtype))
        for policy in (at.Constant(0.3), at.Adaptive(), at.EntropyTarget(0.5), at.LogLength(2), at.SSMax(1.0)):
            assert policy.inverse_temperature(rows).dtype == expected
        for policy in (at.Yarn(4), at.Llama4(2, 0.1), at.CriticalScale(1.0)):
            assert policy.inverse_temperature(rows).dtype == expected
    assert at.Constant(3.0).inverse_temperature(rows)[0].item() == 1 / 3


@pytest.mark.parametrize(
    ("entropy", "value"), [(1, 1.270), (2, 2.099), (3, 2.250), (4, 2.389), (5, 2.294), (5.5, 1.847), (4.412, 2.4214)]
)
def test_the_published_polynomial(entropy, value):
    """Golden values of arXiv 2410.01104's coefficients."""
    length = 400
    logits = torch.zeros(1, length, dtype=torch.float64)
    # one entry above the rest, until the entropy is the one asked for
    low, high = 0.0, 30.0
    for _ in range(80):
        logits[0, 0] = (low + high) / 2
        low, high = (low, (low + high) / 2) if at.entropy(logits) < entropy else ((low + high) / 2, high)
    rows = rows_of(logits)
    assert rows.entropy.item() == pytest.approx(entropy)
    assert at.Adaptive().inverse_temperature(rows).item() == pytest.approx(value, abs=6e-4)


@given(arrays)
def test_adaptive_agrees_with_its_formula(logits):
    for policy in (at.Adaptive(), at.Adaptive((0.5, 0.8), 0.9, 1.5), at.Adaptive([3], min_entropy=0)):
        expected = []
        for row in logits:
            entropy = entropy_of(row)
            value = sum(c * entropy**k for k, c in enumerate(reversed(policy.coefficients)))
            acts = policy.min_entropy < entropy <= (policy.max_entropy or INF)
            # where rounding decides, both are right
            close = min(abs(entropy - edge) for edge in (policy.min_entropy, policy.max_entropy or INF)) < 1e-9
            expected.append(math.nan if close else max(value, 1) if acts else 1)
        got = policy.inverse_temperature(rows_of(logits)).numpy()
        known = ~np.isnan(expected)
        np.testing.assert_allclose(got[known], np.array(expected)[known], rtol=1e-9)


def test_adaptive_leaves_sharp_rows_and_long_flat_ones_alone():
    with pytest.warns(UserWarning, match="above 5.94 nats"):
        beta = at.Adaptive().inverse_temperature(uniform(1, 2, 381, 382, 1000))
    assert beta.tolist() == pytest.approx([1, 1, np.polyval(PUBLISHED, math.log(381)), 1, 1])
    assert beta[2] > 1.004


@pytest.mark.filterwarnings("ignore:Adaptive:UserWarning")
def test_its_gradient_is_zero_where_it_is_clamped():
    logits = torch.zeros(3, 1000, dtype=torch.float64)
    logits[0, 1:] = logits[1, 50:] = -INF
    logits.requires_grad_()
    logits.data += torch.linspace(0, 1, 1000)
    beta = at.Adaptive().inverse_temperature(rows_of(logits))
    assert (beta > 1).tolist() == [False, True, False]
    beta.sum().backward()
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().sum(-1).bool().tolist() == [False, True, False]


def test_gradients():
    logits = 2 * torch.randn(4, 6, dtype=torch.float64)
    wall = torch.full((4, 2), -INF, dtype=torch.float64)
    logits.requires_grad_()
    scale = torch.tensor([0.3, 2.0], dtype=torch.float64, requires_grad=True)
    for policy in (at.Adaptive(), at.CriticalScale(3.0)):
        assert gradcheck(lambda v, p=policy: p.inverse_temperature(rows_of(torch.cat([v, wall], -1))), logits)
    heads = torch.randn(2, 3, 5, dtype=torch.float64)
    assert gradcheck(lambda s: at.SSMax(s).inverse_temperature(rows_of(heads)), scale)


def test_length_policies_read_the_length_alone():
    n = torch.tensor([[1, 1, 2], [16, 8191, 8192]], dtype=torch.float64)
    log = n.log()
    expected = {
        at.LogLength(16): (log / math.log(16)).clamp(min=1),
        at.SSMax(0.4): 0.4 * log,
        at.Yarn(4): torch.full((2, 3), (0.1 * math.log(4) + 1) ** 2),
        at.Llama4(8192, 0.1): torch.tensor([[1, 1, 1], [1, 1, 1 + 0.1 * math.log(2)]]),
        at.Llama4(0.5, 0.2): torch.tensor([[0, 2, 4], [32, 16382, 16384]]).log1p() * 0.2 + 1,
    }
    for policy, beta in expected.items():
        torch.testing.assert_close(policy.inverse_temperature(LengthAlone()), beta.float())
        assert policy.needs in ((), ("length",))
    for policy in expected:
        assert policy.inverse_temperature(uniform(1)).isfinite().all()


def test_llama4_steps_exactly_at_multiples():
    rows = LengthAlone()
    rows.length = torch.tensor([3 * 7 - 1, 3 * 7])
    assert at.Llama4(7, 1.0).inverse_temperature(rows).tolist() == pytest.approx([1 + math.log(3), 1 + math.log(4)])


def test_log_length_sharpens_beyond_the_trained_length_alone():
    assert at.LogLength(16).inverse_temperature(uniform(4, 16, 256)).tolist() == pytest.approx([1, 1, 2])


def test_ssmax_gives_every_head_its_own_scale():
    scale = nn.Parameter(torch.tensor([0.1, 0.2, 0.3, 0.4]))
    logits = torch.zeros(2, 4, 5, 10)
    whole = at.SSMax(scale).inverse_temperature(rows_of(logits))
    torch.testing.assert_close(whole[1, :, 2], scale * math.log(10))
    part = at.RowStatistics(HeldLogits.of(logits[:, 1:3]), first_head=1)
    torch.testing.assert_close(at.SSMax(scale).inverse_temperature(part), whole[:, 1:3])
    whole.sum().backward()
    torch.testing.assert_close(scale.grad, torch.full((4,), 10 * math.log(10)))
    with pytest.raises(ArgumentError, match="^scale: one for each head, of which head 4, is accepted, but '4 of them'"):
        at.SSMax(scale).inverse_temperature(at.RowStatistics(HeldLogits.of(logits[:, 1:]), first_head=2))
    with pytest.raises(ArgumentError, match="^scale: for rows without heads a number is accepted"):
        at.SSMax(scale).inverse_temperature(rows_of(torch.zeros(3, 4)[0]))


@given(arrays, st.floats(0.1, 10))
def test_critical_scale_agrees_with_its_formula(logits, multiple):
    logits = np.round(logits, 2)
    expected = []
    for row in logits:
        s = sorted(row[row > -INF], reverse=True)
        gaps = [s[0] - each for each in s[1:]]
        tied = not gaps or gaps[0] == 0
        expected.append(1 if tied else max(1, multiple * max(math.log(j) / g for j, g in enumerate(gaps, 2))))
    np.testing.assert_allclose(at.CriticalScale(multiple).inverse_temperature(rows_of(logits)), expected, rtol=1e-6)


def test_the_sink_counts_in_the_critical_scale():
    sunk = HeldLogits.of(torch.tensor([[2.0]]), torch.tensor([1.5]))
    beta = at.CriticalScale(1.0).inverse_temperature(at.RowStatistics(sunk))
    assert beta.item() == pytest.approx(math.log(2) / 0.5)
    assert at.CriticalScale(1.0).inverse_temperature(rows_of(torch.tensor([[2.0]]))).tolist() == [1]


def test_critical_scale_has_finite_gradients_at_ties_and_masks():
    logits = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.5, -INF], [-INF, -INF, -INF]], requires_grad=True)
    beta = at.CriticalScale(1.0).inverse_temperature(rows_of(logits))
    assert beta.tolist() == pytest.approx([1, math.log(2) / 0.5, 1])
    beta.sum().backward()
    assert logits.grad.isfinite().all() and logits.grad[1, 0] != 0


def test_where_a_polynomial_switches_off():
    assert switch_off(PUBLISHED) == pytest.approx(5.9445, abs=1e-4)
    assert np.polyval(PUBLISHED, switch_off(PUBLISHED)) == pytest.approx(1)
    # falls below 1, and rises above it again for good
    assert switch_off((1.0, -6.0, 11.0, -5.0)) is None
    assert switch_off((-1.0, 6.0, -11.0, 7.0)) == pytest.approx(3)
    for never in ((0.5,), (2.0,), (1.0, 0.0), (-1.0, 0.5), (0.0, 0.0, 1.0), (-1.0, 2.0, 0.0), (0.0, 0.0)):
        assert switch_off(never) is None
    assert switch_off((0.0, -1.0, 3.0)) == pytest.approx(2)


def test_it_warns_once_when_more_than_a_twentieth_lies_above():
    policy = at.Adaptive()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(19):
            policy.inverse_temperature(uniform(10, 20))
        policy.inverse_temperature(uniform(10, 500))
        # what sees nothing is no row
        policy.inverse_temperature(rows_of(torch.full((1000, 2), -INF)))
        policy.inverse_temperature(uniform(500))
    with pytest.warns(UserWarning, match=r"7% of the rows so far .* above 5\.94 nats.*Refit.*EntropyTarget") as seen:
        policy.inverse_temperature(uniform(500))
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.inverse_temperature(uniform(500))
        at.Adaptive(max_entropy=10.0).inverse_temperature(uniform(500))
        at.Adaptive((1.0, 1.0)).inverse_temperature(uniform(500))
        compiled = torch.compile(lambda x: at.Adaptive().inverse_temperature(rows_of(x)), backend="eager")
        compiled(torch.zeros(2, 500))


def test_what_it_counted_belongs_to_no_copy_and_no_comparison():
    policy = at.Adaptive()
    with pytest.warns(UserWarning, match="100%"):
        policy.inverse_temperature(uniform(500))
    for twin in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy)), at.Adaptive(), replace(policy)):
        assert twin == policy and hash(twin) == hash(policy) and repr(twin) == repr(policy)
        with pytest.warns(UserWarning, match="100%"):
            twin.inverse_temperature(uniform(500))
    assert "seen" not in repr(policy)


def test_equality():
    assert at.Adaptive(list(PUBLISHED)) == at.Adaptive() != at.Adaptive(PUBLISHED[::-1])
    assert at.Constant(2) == at.Constant(np.float32(2)) != at.Constant(3)
    assert at.SSMax(torch.ones(2)) == at.SSMax(nn.Parameter(torch.ones(2))) != at.SSMax(torch.ones(3))
    assert at.SSMax(1.0) == at.SSMax(1) != at.SSMax(torch.ones(1)) != at.Constant(1.0)
    assert hash(at.SSMax(torch.ones(2))) == hash(at.SSMax(torch.ones(2)))
    learned = copy.deepcopy(at.SSMax(nn.Parameter(torch.ones(2))))
    assert isinstance(learned.scale, nn.Parameter)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: at.Constant(0), "temperature: a finite number above 0"),
        (lambda: at.Constant(-1.0), "temperature: a finite number above 0"),
        (lambda: at.Constant("1"), "temperature: a finite number above 0"),
        (lambda: at.Adaptive(()), "coefficients: finite numbers, at least one,"),
        (lambda: at.Adaptive((1.0, math.nan)), "coefficients: finite numbers"),
        (lambda: at.Adaptive((1.0, "2")), "coefficients: finite numbers"),
        (lambda: at.Adaptive("12"), "coefficients: finite numbers"),
        (lambda: at.Adaptive(3.0), "coefficients: finite numbers"),
        (lambda: at.Adaptive(min_entropy=-0.1), "min_entropy: a finite number from 0"),
        (lambda: at.Adaptive(max_entropy=0.5), "max_entropy: a number above min_entropy, 0.5, is"),
        (lambda: at.Adaptive(max_entropy=INF), "max_entropy: a finite number above 0"),
        (lambda: at.LogLength(1), "train_length: a whole number from 2"),
        (lambda: at.LogLength(2.5), "train_length: a whole number from 2"),
        (lambda: at.SSMax(0), "scale: a finite number above 0"),
        (lambda: at.SSMax(torch.tensor(1.0)), "scale: a number, or a floating-point tensor"),
        (lambda: at.SSMax(torch.ones(2, 2)), "scale: a number, or a floating-point tensor"),
        (lambda: at.SSMax(torch.ones(2, dtype=torch.int)), "scale: a number, or a floating-point tensor"),
        (lambda: at.SSMax(torch.tensor([1.0, -1.0])), "scale: a finite number above 0, or a tensor of such"),
        (lambda: at.Yarn(0.5), "factor: a finite number from 1"),
        (lambda: at.Yarn(True), "factor: a finite number above 0"),
        (lambda: at.Llama4(0, 0.1), "floor_scale: a finite number above 0"),
        (lambda: at.Llama4(8192, -0.1), "attn_scale: a finite number from 0"),
        (lambda: at.CriticalScale(0), "multiple: a finite number above 0"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ArgumentError, match=f"^{message}"):
        make()
