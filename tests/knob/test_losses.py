import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attemper as at
from attemper import schedules
from attemper.errors import ArgumentError, DataError


def reference(logits, target, temperature, weight=None, smoothing=0.0, ignore=-100, reduction="mean"):
    """Row by row, from the definition, in float64."""
    losses, weights = [], []
    classes = logits.shape[1]
    for row, label in zip(logits.double(), target.tolist(), strict=True):
        if label == ignore:
            losses.append(torch.tensor(0.0, dtype=torch.float64))
            weights.append(0.0)
            continue
        z = row / temperature
        log_p = z - z.exp().sum().log()
        w = weight.double() if weight is not None else torch.ones(classes, dtype=torch.float64)
        share = torch.full((classes,), smoothing / classes, dtype=torch.float64)
        share[label] += 1 - smoothing
        losses.append(-(share * w * log_p).sum())
        weights.append(float(w[label]))
    losses = torch.stack(losses)
    return {"none": losses, "sum": losses.sum(), "mean": losses.sum() / sum(weights)}[reduction]


@given(
    st.floats(0.1, 1000),
    st.booleans(),
    st.sampled_from([0.0, 0.1, 0.9]),
    st.sampled_from(["mean", "sum", "none"]),
    st.integers(0, 10**6),
)
def test_it_is_the_cross_entropy_of_logits_over_temperature(temperature, weighted, smoothing, reduction, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(6, 4, generator=generator)
    target = torch.randint(0, 4, (6,), generator=generator)
    target[2] = -7
    weight = torch.rand(4, generator=generator) + 0.1 if weighted else None
    loss = at.TemperedCrossEntropy(temperature, weight, smoothing, ignore_index=-7, reduction=reduction)
    expected = reference(logits, target, temperature, weight, smoothing, -7, reduction)
    torch.testing.assert_close(loss(logits, target).double(), expected, rtol=1e-4, atol=1e-4)


def test_a_high_temperature_starts_at_ln_c_and_shrinks_the_gradient():
    logits = torch.randn(50, 10, dtype=torch.float64, requires_grad=True)
    target = torch.arange(50) % 10
    loss = at.TemperedCrossEntropy(1e6)(logits, target)
    assert loss.item() == pytest.approx(math.log(10), abs=1e-5)
    loss.backward()
    uniform = (0.1 - torch.nn.functional.one_hot(target, 10).double()) / 1e6 / 50
    torch.testing.assert_close(logits.grad, uniform, rtol=1e-4, atol=0)


def test_huge_logits_and_tiny_temperatures_stay_finite():
    logits = torch.tensor([[1e38, -1e38, 0.0]])
    assert at.TemperedCrossEntropy(1e-30)(torch.tensor([[1e30, 0.0]]), torch.tensor([0])).item() == 0
    expected = math.log1p(math.exp(-1) + math.exp(-2))
    assert at.TemperedCrossEntropy(1e38)(logits, torch.tensor([0])).item() == pytest.approx(expected, rel=1e-5)
    halves = torch.tensor([[60000.0, 0.0]], dtype=torch.float16)
    assert at.TemperedCrossEntropy(1e-3)(halves, torch.tensor([1])).item() == pytest.approx(6e7)


def test_half_precision_is_divided_in_float32():
    logits = torch.randn(8, 5).bfloat16()
    target = torch.arange(8) % 5
    loss = at.TemperedCrossEntropy(3.0)(logits, target)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, at.TemperedCrossEntropy(3.0)(logits.float(), target))


def test_dense_targets_and_a_single_row():
    logits, target = torch.randn(2, 5, 3, 4), torch.randint(0, 5, (2, 3, 4))
    rows, flat = logits.movedim(1, -1).reshape(-1, 5), target.flatten()
    loss = at.TemperedCrossEntropy(7.0)
    torch.testing.assert_close(loss(logits, target), loss(rows, flat))
    torch.testing.assert_close(loss(rows[0], flat[0]), loss(rows[:1], flat[:1]))


def test_a_schedule_is_read_at_the_progress_that_was_set():
    loss = at.TemperedCrossEntropy(schedules.linear(100.0, 1.0))
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    for progress, temperature in ((0.0, 100.0), (0.5, 50.5), (1.0, 1.0)):
        loss.progress = progress
        assert loss.temperature == temperature
        torch.testing.assert_close(
            loss(logits, target), torch.nn.functional.cross_entropy(logits / temperature, target)
        )
    cold = at.TemperedCrossEntropy(lambda progress: 1 - progress)
    cold.progress = 1.0
    with pytest.raises(ArgumentError, match=r"^temperature \(the schedule at progress 1\): a finite number above 0"):
        cold(logits, target)


def test_a_learned_temperature_moves_to_where_the_loss_is_least():
    loss = at.TemperedCrossEntropy(at.Learned(1.0))
    assert [name for name, _ in loss.named_parameters()] == ["_temperature.log_temperature"]
    target = torch.arange(100) % 2
    logits = 8 * torch.nn.functional.one_hot(target, 2).float()
    target = torch.where(torch.arange(100) < 10, 1 - target, target)  # one in ten is wrong: best at 8 / ln 9
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        loss(logits, target).backward()
        optimizer.step()
    assert loss.temperature.item() == pytest.approx(8 / math.log(9), rel=1e-3)


def test_gradients_through_a_learned_temperature():
    learned = at.Learned(2.0).double()
    loss = at.TemperedCrossEntropy(learned)
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 1, 2, 0])

    def value(logits, log_temperature):
        return torch.func.functional_call(loss, {"_temperature.log_temperature": log_temperature}, (logits, target))

    assert torch.autograd.gradcheck(value, (logits, learned.log_temperature))


@pytest.mark.parametrize("temperature", [0, -1.0, math.nan, math.inf, "hot", None, True, 10**400])
def test_temperatures_refused(temperature):
    with pytest.raises(ArgumentError, match="^temperature: a finite number above 0 is accepted"):
        at.TemperedCrossEntropy(temperature)
    with pytest.raises(ArgumentError, match="^initial: a finite number above 0 is accepted"):
        at.Learned(temperature)


def test_labels_refused():
    loss = at.TemperedCrossEntropy()
    for label in (3, -1, 1000):
        with pytest.raises(DataError, match=f"^target: labels from 0 to 2 are accepted, but {label} came$"):
            loss(torch.randn(2, 3), torch.tensor([0, label]))
    with pytest.raises(ArgumentError, match=r"^target: shape \(2,\) is accepted, but \(3,\) came"):
        loss(torch.randn(2, 3), torch.tensor([0, 1, 2]))
    assert loss(torch.randn(2, 3), torch.tensor([0, -100])).isfinite()


def test_masked_logits_leave_the_gradient_of_a_temperature_finite():
    """The mask's -inf / T must not become NaN: the gradient is that of the entries that are there."""
    learned, alone = at.Learned(2.0), at.Learned(2.0)
    at.TemperedCrossEntropy(learned)(torch.tensor([[0.0, -torch.inf, 1.0]]), torch.tensor([0])).backward()
    at.TemperedCrossEntropy(alone)(torch.tensor([[0.0, 1.0]]), torch.tensor([0])).backward()
    torch.testing.assert_close(learned.log_temperature.grad, alone.log_temperature.grad)


def test_targets_and_weights_of_a_wrong_kind_are_refused():
    loss, logits = at.TemperedCrossEntropy(), torch.randn(2, 3)
    for target in ([0, 1], torch.tensor([0.0, 1.0]), torch.tensor([0, 1], dtype=torch.int32)):
        with pytest.raises(ArgumentError, match="^target: a tensor of int64 class indices is accepted"):
            loss(logits, target)
    for weight in ([1.0, 2.0], torch.tensor([1, 2]), torch.ones(2, 2)):
        with pytest.raises(ArgumentError, match=r"^weight: a floating-point tensor \(classes,\) is accepted"):
            at.TemperedCrossEntropy(weight=weight)
    with pytest.raises(ArgumentError, match="^weight: one for each of 3 classes is accepted, but '2 of them' came"):
        at.TemperedCrossEntropy(weight=torch.ones(2))(logits, torch.tensor([0, 1]))


def test_other_arguments_refused():
    with pytest.raises(ArgumentError, match=r"^label_smoothing: a number within \[0, 1\] is accepted, but 1.5 came"):
        at.TemperedCrossEntropy(label_smoothing=1.5)
    with pytest.raises(ArgumentError, match="^reduction: 'mean', 'sum' or 'none' is accepted, but 'average' came"):
        at.TemperedCrossEntropy(reduction="average")
