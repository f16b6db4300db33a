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
entries = st.one_of(st.floats(-1e4, 1e4), st.just(-INF))
rows = hnp.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 12)), elements=entries)
temperatures = st.floats(1e-3, 1e6)


def reference(logits: np.ndarray, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and entropies, a row at a time and by the definition."""
    probabilities, entropies = np.zeros_like(logits), np.zeros(len(logits))
    for i, row in enumerate(logits):
        seen = np.flatnonzero(row > -INF)
        if not len(seen):
            continue
        shares = np.exp((row[seen] - row[seen].max()) / temperature)
        shares /= shares.sum()
        probabilities[i, seen] = shares
        entropies[i] = -sum(p * math.log(p) for p in shares if p > 0)
    return probabilities, entropies


@given(rows, temperatures)
def test_both_agree_with_the_definition(logits, temperature):
    probabilities, entropies = reference(logits, temperature)
    given_ = torch.from_numpy(logits)
    np.testing.assert_allclose(at.softmax(given_, temperature), probabilities, rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(at.entropy(given_, temperature), entropies, rtol=1e-9, atol=1e-12)


@given(rows, temperatures)
def test_float32_agrees_with_float64(logits, temperature):
    single = torch.from_numpy(logits).float()
    probabilities, entropies = reference(single.double().numpy(), temperature)
    np.testing.assert_allclose(at.softmax(single, temperature), probabilities, rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(at.entropy(single, temperature), entropies, rtol=1e-4, atol=1e-5)


@given(rows, temperatures, st.floats(-1e3, 1e3))
def test_a_constant_added_to_a_row_changes_nothing(logits, temperature, constant):
    logits = torch.from_numpy(np.round(logits, 3))
    moved = logits + round(constant, 3)
    torch.testing.assert_close(at.entropy(moved, temperature), at.entropy(logits, temperature), rtol=0, atol=1e-6)


@given(rows, temperatures, st.floats(1, 100))
def test_a_lower_temperature_never_raises_entropy(logits, temperature, factor):
    logits = torch.from_numpy(logits)
    entropy = at.entropy(logits, temperature)
    assert (entropy <= at.entropy(logits, temperature * factor) + 1e-9).all()
    assert (entropy >= 0).all()
    assert (entropy <= math.log(logits.shape[1]) + 1e-12).all()


@pytest.mark.parametrize("temperature", [1e-38, 1e-30, 1e30, 3e38])
def test_no_temperature_overflows(temperature):
    logits = torch.tensor([[1e4, -1e4, 1e4, -INF]])
    sharp = temperature < 1
    expected = torch.tensor([[0.5, 0.0, 0.5, 0.0]]) if sharp else torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0.0]])
    torch.testing.assert_close(at.softmax(logits, temperature), expected)
    assert at.entropy(logits, temperature).item() == pytest.approx(math.log(2 if sharp else 3))


def test_masked_entries_are_exactly_zero_and_masked_rows_all_zero():
    logits = torch.tensor([[0.0, -INF, 1.0], [-INF, -INF, -INF]], requires_grad=True)
    probabilities = at.softmax(logits, 3.0)
    assert probabilities[0, 1] == 0
    assert probabilities[1].tolist() == [0, 0, 0]
    assert at.entropy(logits)[1] == 0
    (probabilities.square().sum() + at.entropy(logits).sum()).backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[1].tolist() == [0, 0, 0]


def test_gradients():
    logits = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    temperature = torch.tensor([[0.5], [1.0], [3.0]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(at.softmax, (logits, temperature))
    assert torch.autograd.gradcheck(at.entropy, (logits, temperature))


def test_masked_entries_leave_the_gradient_of_a_temperature_finite():
    masked, plain = torch.tensor([[0.0, -INF, 1.0]]), torch.tensor([[0.0, 1.0]])
    for function in (at.softmax, at.entropy):
        gradients = []
        for logits in (masked, plain):
            temperature = torch.tensor(2.0, requires_grad=True)
            function(logits, temperature).square().sum().backward()
            gradients.append(temperature.grad)
        torch.testing.assert_close(*gradients)


def test_any_dimension():
    logits = torch.randn(4, 5, 6)
    for dim in (0, 1, 2, -2):
        torch.testing.assert_close(at.softmax(logits, 2.0, dim), torch.softmax(logits / 2, dim))
        assert at.entropy(logits, 2.0, dim).shape == logits.sum(dim).shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    logits = (8 * torch.randn(100, 64)).to(dtype)
    probabilities = at.softmax(logits, 3.0)
    assert probabilities.dtype == dtype
    assert torch.equal(probabilities, at.softmax(logits.float(), 3.0).to(dtype))
    assert torch.equal(at.entropy(logits), at.entropy(logits.float()))
    assert at.entropy(logits).dtype == torch.float32


def test_it_compiles_to_the_same_numbers():
    logits = torch.randn(3, 7)
    for function in (at.softmax, at.entropy):
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(logits, torch.tensor(2.0)), function(logits, 2.0))


@pytest.mark.parametrize("temperature", [0, -1, math.nan, INF, "1", None, True, torch.tensor([1.0, -2.0])])
@pytest.mark.parametrize("function", [at.softmax, at.entropy])
def test_temperatures_refused(function, temperature):
    with pytest.raises(ArgumentError, match="^temperature: a finite number above 0"):
        function(torch.zeros(2, 2), temperature)


@pytest.mark.parametrize("function", [at.softmax, at.entropy])
def test_logits_refused(function):
    with pytest.raises(ArgumentError, match="^logits: a tensor of floating-point numbers is accepted, but torch"):
        function(torch.zeros(2, 2, dtype=torch.long))
    with pytest.raises(ArgumentError, match="^logits: a tensor of floating-point numbers is accepted"):
        function([0.0, 1.0])
    with pytest.raises(ArgumentError, match="^logits: at least one entry a row"):
        function(torch.zeros(2, 0))
    with pytest.raises(ArgumentError, match="^dim: a dimension of logits, which has 2, is accepted, but 2 came"):
        function(torch.zeros(2, 2), 1.0, 2)
    with pytest.raises(ArgumentError, match="^dim: a dimension of logits"):
        function(torch.zeros(2, 2), 1.0, "a")
