import gc
import math
import types
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import attemper as at
from attemper.attention.cases import asked
from attemper.attention.routes import blocks, places, reference

POLICIES = {
    "none": None,
    "constant": at.Constant(0.6),
    "yarn": at.Yarn(4.0),
    "log-length": at.LogLength(3),
    "ssmax": at.SSMax(0.7),
    "llama4": at.Llama4(2, 0.3),
    "adaptive": at.Adaptive(),
    "target": at.EntropyTarget(1.0, max_passes=30),
    "critical": at.CriticalScale(1.5),
    "per-head": at.PerHead({(0, 0): at.Constant(0.5), (0, 1): at.Adaptive()}, default=at.LogLength(2)),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(places, "FOR_A_THREAD", 48)
    monkeypatch.setattr(places, "ROWS", 2)


@pytest.fixture
def tensors():
    """Query, key, value, bias and sinks of two sequences, four heads on two key heads, five queries and seven keys."""
    shapes = [(2, 4, 5, 3), (2, 2, 7, 3), (2, 2, 7, 4), (1, 4, 5, 7), (4,)]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def rich(policy, **options):
    """Attention with a bias, a soft cap, sinks and a causal mask, as a function of its tensors."""
    settings = {"is_causal": True, "enable_gqa": True, "softcap": 3.0, "policy": policy} | options
    return lambda q, k, v, bias, sinks: at.attention(q, k, v, bias, sinks=sinks, **settings)


def dense(policy, q, k, v, bias, sinks):
    case = asked(q, k, v, bias, is_causal=True, enable_gqa=True, softcap=3.0, sinks=sinks)
    rows = at.RowStatistics(reference.rows(case), layer=0)
    return reference.attend(case, None if policy is None else policy.inverse_temperature(rows))


@pytest.mark.parametrize("name", POLICIES)
def test_gradients_are_those_of_the_function_and_of_the_dense_formula(name, tensors):
    policy = POLICIES[name]
    assert torch.autograd.gradcheck(rich(policy), tensors, fast_mode=True)
    direction = torch.randn(2, 4, 5, 4, dtype=torch.float64)
    ours, theirs = rich(policy)(*tensors), dense(policy, *tensors)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    found = torch.autograd.grad((ours * direction).sum(), tensors)
    expected = torch.autograd.grad((theirs * direction).sum(), tensors)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-8)
        assert mine.abs().max() > 1e-3


@pytest.mark.parametrize("mask", [None, "bool"])
def test_gradients_of_the_plain_route(mask, tensors):
    query, key, value, *_ = tensors
    seen = torch.rand(5, 7) > 0.3 if mask else None

    def plain(q, k, v):
        return at.attention(q, k, v[..., :3], seen, enable_gqa=True, policy=at.SSMax(0.8))

    assert torch.autograd.gradcheck(plain, (query, key, value), fast_mode=True)


@pytest.mark.parametrize("field", ["entropy", "logsumexp", "mean_logit", "variance", "max_logit", "min_logit"])
def test_statistics_carry_gradients(field, tensors):
    query, key, _, bias, sinks = tensors

    def statistic(q, k, b, s):
        rows = at.attention_statistics(q, k, b, is_causal=True, enable_gqa=True, softcap=3.0, sinks=s)
        return getattr(rows, field)

    assert torch.autograd.gradcheck(statistic, (query, key, bias, sinks), fast_mode=True)

    def at_beta(q, k, beta):
        return getattr(at.attention_statistics(q, k, enable_gqa=True).at(beta), field)

    beta = (0.5 + torch.rand(2, 4, 5, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(at_beta, (query, key, beta), fast_mode=True)


def test_the_gradient_of_the_entropy_is_the_one_a_fused_call_with_the_keys_as_values_has(tensors):
    query, key = (tensors[i].detach().repeat_interleave(2 if i else 1, 1).requires_grad_() for i in (0, 1))
    scale = 3**-0.5
    found = torch.autograd.grad(at.attention_statistics(query, key).entropy.sum(), (query, key))
    read = torch.nn.functional.scaled_dot_product_attention(query, key, key.detach())
    expected = torch.autograd.grad(-(scale * query.detach() * read).sum(), (query, key))
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


def test_detach_stops_the_gradient_at_beta(tensors):
    policy = at.Adaptive()
    query, key, value, bias, sinks = tensors
    case = asked(query, key, value, bias, is_causal=True, enable_gqa=True, softcap=3.0, sinks=sinks)
    beta = policy.inverse_temperature(at.RowStatistics(reference.rows(case))).detach()
    expected = torch.autograd.grad(reference.attend(case, beta).square().sum(), tensors)
    found = torch.autograd.grad(rich(policy, detach=True)(*tensors).square().sum(), tensors)
    through = torch.autograd.grad(rich(policy)(*tensors).square().sum(), tensors)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-9)
    assert (found[0] - through[0]).abs().max() > 1e-3


def test_detach_stops_what_a_policy_learns_and_what_is_compiled(tensors):
    query, key, value, *_ = tensors
    scale = torch.ones(4, dtype=torch.float64, requires_grad=True)
    for softcap in (None, 3.0):
        options = {"enable_gqa": True, "softcap": softcap, "policy": at.SSMax(scale)}
        through, stopped = (at.attention(query, key, value[..., :3], **options, detach=d) for d in (False, True))
        torch.testing.assert_close(through, stopped)
        assert torch.autograd.grad(through.square().sum(), scale)[0].abs().max() > 1e-4
        (found,) = torch.autograd.grad(stopped.square().sum(), scale, allow_unused=True)
        assert found is None or found.abs().max() == 0
    function = rich(at.Adaptive(), detach=True)
    whole = torch.compile(function, backend="aot_eager", fullgraph=True)
    found = torch.autograd.grad(whole(*tensors).square().sum(), tensors)
    expected = torch.autograd.grad(function(*tensors).square().sum(), tensors)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("make", ["parameter", "module", "in a table"])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_a_policy_learns(make, softcap, tensors):
    class Power(torch.nn.Module):
        needs = ("entropy",)

        def __init__(self, scale):
            super().__init__()
            self.scale = torch.nn.Parameter(scale)

        def inverse_temperature(self, rows):
            return 1 + self.scale[:, None] * rows.entropy

    scale = torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=torch.float64)
    if make == "module":
        policy, learned = (power := Power(scale)), power.scale
    else:
        learned = scale.clone().requires_grad_()
        policy = at.SSMax(learned) if make == "parameter" else at.PerHead({(0, None): at.SSMax(learned)})
    query, key, value, *_ = tensors
    value = value[..., :3]

    def loss(parameter):
        # changed in place, as an optimizer does
        with torch.no_grad():
            learned.copy_(parameter)
        output = at.attention(query, key, value, enable_gqa=True, policy=policy, softcap=softcap)
        return output.square().sum()

    gradient = torch.autograd.grad(loss(scale), learned)[0]
    step = 1e-6
    for i in range(4):
        moved = [scale + sign * step * torch.eye(4, dtype=torch.float64)[i] for sign in (1, -1)]
        slope = (loss(moved[0]) - loss(moved[1])).item() / (2 * step)
        assert gradient[i].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_a_row_that_sees_nothing_has_a_gradient_of_zero(tensors):
    query, key, value, *_ = tensors
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    for policy in (None, at.Adaptive(), at.EntropyTarget(0.5), at.CriticalScale(1.0), at.SSMax(0.5)):
        output = at.attention(query, key, value, mask, enable_gqa=True, policy=policy)
        assert output[:, :, 2].abs().max() == 0
        gradients = torch.autograd.grad(output.square().sum(), (query, key, value))
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert gradients[0][:, :, 2].abs().max() == 0
        assert gradients[0][:, :, 1].abs().max() > 0


def test_operators_pass_torchs_own_check():
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, 2, 3, 4, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(3)
    )
    settings = (None, None, False, 0.5, None, 0.0, "exact")
    for work, beta in (("moments", None), ("attend", torch.ones(1, 2, 3, dtype=torch.float64, requires_grad=True))):
        arguments = (work, query, key, value, None, None, beta, *settings)
        torch.library.opcheck(torch.ops.attemper.blocks.default, arguments)


@pytest.mark.parametrize("policy", [None, at.Adaptive(), at.EntropyTarget(1.0), at.CriticalScale(1.0), at.LogLength(2)])
def test_compiled_without_a_break_it_gives_the_same_numbers_and_gradients(policy, tensors):
    function = rich(policy)
    whole = torch.compile(function, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(whole(*tensors), function(*tensors), rtol=0, atol=1e-9)
    found = torch.autograd.grad(whole(*tensors).square().sum(), tensors)
    expected = torch.autograd.grad(function(*tensors).square().sum(), tensors)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=2e-3 if isinstance(policy, at.EntropyTarget) else 1e-9)


class Sizes(TorchDispatchMode):
    """Keeps the size of the largest tensor that any operation gave."""

    largest = 0

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        result = operation(*arguments, **(options or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


@pytest.mark.parametrize("policy", [at.Adaptive(), at.CriticalScale(1.0), at.EntropyTarget(3.0), None])
def test_no_tensor_is_as_large_as_the_logits_forward_or_backward(policy, monkeypatch):
    monkeypatch.setattr(places, "FOR_A_THREAD", 2**14)
    query, key, value = (torch.randn(1, 2, 512, 8, requires_grad=True) for _ in range(3))
    with Sizes() as sizes:
        rows = at.attention_statistics(query, key, is_causal=True)
        (rows.entropy.sum() + rows.max_logit.sum()).backward()
        at.attention(query, key, value, is_causal=True, policy=policy, softcap=5.0).sum().backward()
    assert sizes.largest <= 3 * 2**14
    assert sizes.largest < 2 * 512 * 512 / 8


def test_dropout_drops_its_share_and_the_gradient_knows_which(tensors):
    query, key, value, *_ = tensors
    options = {"enable_gqa": True, "policy": at.Adaptive(), "dropout_p": 0.25}

    def output(v):
        torch.manual_seed(3)
        return at.attention(query, key, v, **options)

    # linear in the value: the gradient is right exactly if forward and backward drop the same weights
    direction = torch.randn(2, 4, 5, 4, dtype=torch.float64)
    gradient = torch.autograd.grad((output(value) * direction).sum(), value)[0]
    assert (gradient * value).sum().item() == pytest.approx((output(value) * direction).sum().item(), rel=1e-9)
    ones = torch.ones(1, 1, 4000, 1, dtype=torch.float64)
    flat = at.attention(torch.zeros(1, 1, 200, 1).double(), 0 * ones, ones, dropout_p=0.25, policy=None)
    assert flat.mean().item() == pytest.approx(1, abs=0.002)
    assert flat.std().item() == pytest.approx(math.sqrt(0.25 / 0.75 / 4000), rel=0.2)
    assert at.attention(query, key, value, enable_gqa=True, dropout_p=1.0).abs().max() == 0


def test_what_is_dropped_does_not_depend_on_the_threads(monkeypatch):
    monkeypatch.setattr(places, "FOR_A_THREAD", 2**12)
    value = torch.randn(1, 2, 300, 4, requires_grad=True)
    query = torch.zeros_like(value)
    torch.set_num_threads(2)
    try:
        output = at.attention(query, query, value, dropout_p=0.5, policy=None)
        torch.set_num_threads(1)
        (gradient,) = torch.autograd.grad((output * output.detach()).sum(), value)
    finally:
        torch.set_num_threads(1)
    assert (gradient * value).sum().item() == pytest.approx(output.square().sum().item(), rel=1e-4)


def test_a_mask_that_changes_before_the_backward_pass_is_noticed(tensors):
    query, key, value, *_ = tensors
    mask = torch.ones(5, 7, dtype=torch.bool).tril()
    output = at.attention(query, key, value, mask, enable_gqa=True)
    mask.fill_(True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_nothing_is_kept_alive_beside_what_autograd_keeps():
    kept = []

    def pack(tensor):
        kept.append(weakref.ref(tensor))
        return tensor.detach().clone()

    query, key, value = (torch.randn(1, 2, 5, 3, requires_grad=True) for _ in range(3))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = at.attention(query * 1, key * 1, value * 1, torch.ones(5, 5, dtype=torch.bool))
    gc.collect()
    assert len(kept) >= 4
    assert not [each for each in kept if each() is not None and each() is not output]
    output.sum().backward()


def test_statistics_computed_without_gradients_do_not_serve_who_wants_them(tensors):
    rows = at.attention_statistics(tensors[0], tensors[1], enable_gqa=True)
    with torch.no_grad():
        assert not rows.entropy.requires_grad
        assert not rows.max_logit.requires_grad
    assert rows.entropy.requires_grad
    assert rows.max_logit.requires_grad
    rows = at.attention_statistics(tensors[0], tensors[1], enable_gqa=True)
    with torch.inference_mode():
        assert rows.length.sum() > 0
        assert rows.entropy.sum() > 0
    (rows.entropy * rows.length).sum().backward()
    assert tensors[0].grad.abs().max() > 0


def test_a_beta_of_zero_and_an_absent_sink_have_their_gradients(tensors):
    query, key, value, *_ = tensors
    beta = torch.zeros(2, 4, 5, dtype=torch.float64, requires_grad=True)
    case = asked(query, key, value, enable_gqa=True)
    (found,) = torch.autograd.grad(blocks.over_blocks("attend", case, beta)[0].square().sum(), beta)
    (expected,) = torch.autograd.grad(reference.attend(case, beta).square().sum(), beta)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert expected.abs().max() > 1e-3
    sinks = torch.tensor([-math.inf, 0.5, -math.inf, 1.0], dtype=torch.float64)
    for policy in POLICIES.values():
        output = at.attention(query, key, value, enable_gqa=True, policy=policy, sinks=sinks)
        (gradient,) = torch.autograd.grad(output.square().sum(), query)
        assert gradient.isfinite().all()
        without = at.attention(query, key, value, enable_gqa=True, policy=policy, softcap=1e9)
        torch.testing.assert_close(output[:, ::2], without[:, ::2], rtol=0, atol=1e-6)


class Holder:
    needs = ("entropy",)

    def __init__(self, model, scale):
        self.me, self.model, self.scale = self, model, scale

    def inverse_temperature(self, rows):
        return 1 + self.scale * rows.entropy


class Slotted(Holder):
    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale


class Inherited(Slotted):
    __slots__ = ("other",)


class Contained(Holder):
    def __init__(self, scale):
        self.table = types.MappingProxyType({"scale": scale})

    @property
    def scale(self):
        return self.table["scale"]


def test_what_a_policy_holds_and_does_not_use_gets_no_gradient(tensors):
    query, key, value, *_ = tensors
    model, scale = torch.nn.Linear(3, 3), torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    for policy in (Holder(model, scale), Slotted(scale), Inherited(scale), Contained(scale)):
        scale.grad = None
        at.attention(query, key, value, enable_gqa=True, policy=policy).square().sum().backward()
        assert scale.grad.abs() > 1e-4
    assert model.weight.grad is None


@pytest.mark.parametrize("change", ["layout", "expanded", "scale"])
def test_what_torchs_fused_call_does_not_take_goes_in_blocks(change, tensors):
    query, key, value = (t.detach() for t in tensors[:3])
    value, mask, scale = value[..., :3].contiguous(), torch.rand(5, 7) > 0.3, None
    if change == "layout":
        key = key.transpose(2, 3).contiguous().transpose(2, 3)
    elif change == "expanded":
        key = key[..., :1].expand(key.shape)
    else:
        mask, scale = None, -0.5
    options = {"is_causal": True, "enable_gqa": True, "scale": scale}
    expected = reference.attend(asked(query, key, value, mask, **options), None)
    found = at.attention(query, key, value, mask, policy=None, **options)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_a_padding_mask_is_not_made_a_matrix():
    query, key, value = torch.randn(3, 1, 2, 512, 8).unbind()
    padding = (torch.arange(512) < 400)[None, None, None]
    for policy in (None, at.Constant(0.5), at.LogLength(100)):
        with Sizes() as sizes:
            at.attention(query, key, value, padding, policy=policy)
        assert sizes.largest < 512 * 512 / 8
