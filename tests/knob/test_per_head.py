import copy
import pickle

import pytest
import torch
from torch import nn

import attemper as at
from attemper.errors import ArgumentError
from attemper.knob.needs import needs_of
from attemper.knob.rows import HeldLogits

LOGITS = 2 * torch.randn(2, 4, 5, 9, generator=torch.Generator().manual_seed(0))


class Untouchable:
    """Rows whose logits may not be read."""

    route, shape, dtype, device = "none", torch.Size((2, 4, 5)), torch.float32, torch.device("cpu")

    def __getattr__(self, name):
        raise AssertionError(f"{name} costs a pass")


def rows_of(layer=None, first=0, last=4):
    return at.RowStatistics(HeldLogits.of(LOGITS[:, first:last]), layer=layer, first_head=first)


def betas(policy, layer=None, first=0, last=4):
    """One a head, which all rows of the head must share."""
    beta = policy.inverse_temperature(rows_of(layer, first, last))
    assert beta.shape == (2, last - first, 5)
    assert (beta == beta[:1, :, :1]).all()
    return beta[0, :, 0].tolist()


def test_a_head_comes_before_its_layer_and_that_before_the_default():
    table = {(0, 1): at.Constant(0.5), (0, None): at.Constant(0.25), (1, 3): at.Constant(0.2)}
    policy = at.PerHead(table, default=at.Constant(0.1))
    assert betas(policy, 0) == [4, 2, 4, 4]
    assert betas(policy, 1) == [10, 10, 10, 5]
    assert betas(policy, 2) == [10, 10, 10, 10]
    without = at.PerHead(table)
    assert betas(without, 1) == [1, 1, 1, 5]
    assert betas(without, 2) == [1, 1, 1, 1]
    assert betas(at.PerHead({}), 2) == [1, 1, 1, 1]


def test_rows_may_be_some_of_the_heads():
    policy = at.PerHead({(0, h): at.Constant(1 / (h + 1)) for h in range(4)})
    assert betas(policy, 0) == [1, 2, 3, 4]
    assert betas(policy, 0, 1, 3) == [2, 3]
    assert betas(policy, 0, 3, 4) == [4]


def test_policies_of_every_kind_side_by_side():
    parts = [at.Constant(0.5), at.EntropyTarget(1.0), at.CriticalScale(1.5), None]
    policy = at.PerHead({(3, h): part for h, part in enumerate(parts) if part})
    beta = policy.inverse_temperature(rows_of(3))
    for h, part in enumerate(parts):
        alone = torch.ones(2, 4, 5) if part is None else part.inverse_temperature(rows_of(3))
        torch.testing.assert_close(beta[:, h], alone[:, h])
    part = policy.inverse_temperature(rows_of(3, 1, 3))
    torch.testing.assert_close(part, beta[:, 1:3])


def test_it_learns_through_its_policies():
    scale = nn.Parameter(torch.full((4,), 0.5))
    policy = at.PerHead({(0, 2): at.SSMax(scale), (0, 0): at.Adaptive()})
    policy.inverse_temperature(rows_of(0)).sum().backward()
    assert scale.grad.bool().tolist() == [False, False, True, False]


def test_within_another():
    inner = at.PerHead({(0, 0): at.Constant(0.5), (1, None): at.Adaptive()}, default=at.Constant(0.1))
    outer = at.PerHead({(0, 1): at.Constant(0.25), (0, None): inner}, default=inner)
    assert betas(outer, 0) == [2, 4, 10, 10]
    assert betas(outer, 5) == [10, 10, 10, 10]
    assert outer.needs_at(0) == () and outer.needs_at(1) == ("entropy",)
    assert set(outer.needs) == {"layer", "entropy"}


def test_a_layer_of_constants_reads_nothing():
    policy = at.PerHead({(0, 0): at.Constant(0.5), (1, 0): at.Adaptive(), (2, None): at.LogLength(4)}, at.Yarn(4))
    assert policy.needs_at(0) == () and needs_of(policy, 0) == frozenset()
    assert policy.needs_at(1) == ("entropy",) and policy.needs_at(2) == ("length",) and policy.needs_at(9) == ()
    assert set(policy.needs) == {"layer", "entropy", "length"}
    assert at.PerHead({}, default=at.Adaptive()).needs == ("entropy",)
    assert at.PerHead({}).needs == ()
    rows = at.RowStatistics(Untouchable(), layer=0)
    assert policy.inverse_temperature(rows)[0, :2, 0].tolist() == pytest.approx(
        [2, at.Yarn(4).inverse_temperature(rows)[0, 0, 0].item()]
    )


def test_rows_without_a_layer():
    assert betas(at.PerHead({(7, 0): at.Constant(0.5), (7, None): at.Constant(0.25)})) == [2, 4, 4, 4]
    assert betas(at.PerHead({}, default=at.Constant(0.5))) == [2, 2, 2, 2]
    two = at.PerHead({(0, None): at.Constant(0.5), (1, None): at.Constant(0.25)})
    for ask in (lambda: betas(two), lambda: two.needs_at(None)):
        with pytest.raises(ArgumentError, match="^layer: for a PerHead of 2 layers the index of one, which a model"):
            ask()
    with pytest.raises(ArgumentError, match="^rows: .*for a policy a head, is accepted, but \\(3,\\) came"):
        at.adaptive_softmax(torch.zeros(3, 2), at.PerHead({(0, 0): at.Constant(0.5)}))


def test_equality_copies_and_how_it_shows():
    table = {(0, 1): at.Constant(0.5), (0, None): at.SSMax(torch.ones(4))}
    policy = at.PerHead(table, at.Adaptive())
    for twin in (
        copy.deepcopy(policy),
        pickle.loads(pickle.dumps(policy)),
        at.PerHead(dict(reversed(table.items())), at.Adaptive()),
    ):
        assert twin == policy and hash(twin) == hash(policy)
    assert policy != at.PerHead(table) != at.Constant(1.0)
    assert repr(at.PerHead({(0, 1): at.Constant(0.5)})) == "PerHead({(0, 1): Constant(temperature=0.5)})"
    assert repr(at.PerHead({}, at.Yarn(2))) == "PerHead({}, default=Yarn(factor=2.0))"
    table.clear()
    assert len(policy.policies) == 2
    with pytest.raises(TypeError):
        policy.policies[0, 0] = at.Constant(1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "policies: a dict"),
        (({0: at.Constant(1.0)},), r"policies: a key \(layer, head\) or \(layer, None\)"),
        (({(0,): at.Constant(1.0)},), r"policies: a key \(layer, head\)"),
        (({(-1, 0): at.Constant(1.0)},), r"layer of \(-1, 0\): a whole number from 0"),
        (({(None, 0): at.Constant(1.0)},), r"layer of \(None, 0\): a whole number from 0"),
        (({(0, -1): at.Constant(1.0)},), r"head of \(0, -1\): a whole number from 0"),
        (({(0, 1.0): at.Constant(1.0)},), r"head of \(0, 1.0\): a whole number from 0"),
        (({(0, 1): 2.0},), r"policies\[\(0, 1\)\]: a policy such as"),
        (({(0, 1): at.Constant},), r"policies\[\(0, 1\)\]: a policy such as"),
        (({}, 2.0), "default: a policy such as"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ArgumentError, match=f"^{message}"):
        at.PerHead(*arguments)
