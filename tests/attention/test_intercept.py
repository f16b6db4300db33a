import threading

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention as captured
from torch.utils.checkpoint import checkpoint

import attemper as at
from attemper.attention.active import perform
from attemper.attention.cases import asked
from attemper.attention.layers import attention_modules, following
from attemper.errors import ArgumentError, AttemperError

B, H, L, S, D = 2, 4, 5, 7, 8
INF = torch.inf
SHARP, SHARPER = at.Constant(0.5), at.Constant(0.2)


def draw(heads: int = H) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(B, H, L, D), 2 * torch.randn(B, heads, S, D), torch.randn(B, heads, S, D)


def dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    temperature: float | Tensor,
    bias: Tensor | None = None,
    scale: float = D**-0.5,
) -> Tensor:
    query, key, value = (x.double() for x in (query, key, value))
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    logits = scale * query @ key.transpose(2, 3)
    logits = logits if bias is None else logits + bias.double()
    return torch.softmax(logits / temperature, -1) @ value


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-5, atol=1e-5)


def far(found: Tensor, other: Tensor) -> None:
    assert (found - other).abs().max() > 0.05


def unseen() -> Tensor:
    return torch.rand(B, 1, L, S, generator=torch.Generator().manual_seed(1)) < 0.4


def as_bias(unseen: Tensor, number: float = -INF) -> Tensor:
    return torch.zeros(unseen.shape).masked_fill(unseen, number)


TRIANGLE = torch.ones(L, S, dtype=torch.bool).triu(1)


class Halving:
    """The temperature 0.5, as a policy that is asked row by row."""

    needs = ("entropy",)

    def inverse_temperature(self, rows):
        return torch.full(rows.shape, 2.0)


SLOPES = torch.linspace(0, -3, S)
# positional arguments, named ones, and what the reference is told: a bias and a scale
ARGUMENTS = {
    "nothing": ((), {}, {}),
    "bool mask": ((~unseen(),), {}, {"bias": as_bias(unseen())}),
    "bool mask by name": ((), {"attn_mask": ~unseen()}, {"bias": as_bias(unseen())}),
    "float mask": ((as_bias(unseen()) + SLOPES,), {}, {"bias": as_bias(unseen()) + SLOPES}),
    "mask of -1e9": ((as_bias(unseen(), -1e9),), {}, {"bias": as_bias(unseen())}),
    "causal": ((None, 0.0, True), {}, {"bias": as_bias(TRIANGLE)}),
    "causal by name": ((), {"is_causal": True}, {"bias": as_bias(TRIANGLE)}),
    "scale": ((), {"scale": 0.9}, {"scale": 0.9}),
    "all": ((~unseen(), 0.0, False), {"scale": 0.9, "enable_gqa": True}, {"bias": as_bias(unseen()), "scale": 0.9}),
}


@pytest.mark.parametrize("call", [F.scaled_dot_product_attention, captured, torch._C._nn.scaled_dot_product_attention])
@pytest.mark.parametrize("case", ARGUMENTS)
def test_every_argument_means_what_it_means_for_torch(case, call):
    args, named, told = ARGUMENTS[case]
    given = draw(2 if "enable_gqa" in named else 1 if case == "scale" else H)
    plain = call(*given, *args, **named)
    close(plain, dense(*given, 1.0, **told))
    with at.tempering(at.Constant(1.0)):
        close(call(*given, *args, **named), plain)
    with at.tempering(SHARP):
        sharp = call(*given, *args, **named)
    close(sharp, dense(*given, 0.5, **told))
    far(sharp, plain)
    # a constant takes a shorter way than a policy that looks at the rows
    with at.tempering(Halving()):
        close(call(*given, *args, **named), sharp)


def test_arguments_by_name_alone():
    query, key, value = draw()
    with at.tempering(SHARP):
        close(captured(value=value, key=key, query=query), dense(query, key, value, 0.5))


def test_dropout_leaves_weights_out_and_scales_the_rest():
    query, key, _ = draw()
    identity = torch.eye(S).expand(B, H, S, S)
    weights = dense(query, key, identity, 0.5)
    with at.tempering(SHARP):
        dropped = captured(query, key, identity, dropout_p=0.25)
    kept = dropped != 0
    close(dropped, torch.where(kept, weights / 0.75, 0))
    assert 0.6 < kept[weights > 1e-6].double().mean() < 0.9


def test_a_masked_row_gives_zero_and_numbers_that_mean_unseen_are_not_counted():
    class Lengths:
        needs = ("length",)

        def inverse_temperature(self, rows):
            self.seen = rows.length
            return torch.ones(rows.shape)

    query, key, value = draw()
    mask = torch.tensor([0.0, 0.0, -1e9, -INF, torch.finfo(torch.float32).min, -3.0, 0.0]).repeat(L, 1)
    mask[2] = torch.finfo(torch.float32).min
    policy = Lengths()
    with at.tempering(policy):
        output = captured(query, key, value, mask)
    assert policy.seen[0, 0].tolist() == [4, 4, 0, 4, 4]
    assert (output[:, :, 2] == 0).all()


def test_a_row_that_a_bool_mask_hides_gives_zero_and_a_finite_gradient():
    given = [x.requires_grad_() for x in draw()]
    mask = ~unseen()
    mask[1, 0, 2] = False
    with at.tempering(SHARP):
        output = captured(*given, mask)
    assert (output[1, :, 2] == 0).all()
    gradients = torch.autograd.grad(output.square().sum(), given)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[0][1, :, 2] == 0).all()


def test_the_innermost_policy_is_the_one_in_force_and_never_both():
    given = draw()
    plain = captured(*given)
    with at.tempering(SHARP):
        with at.watching() as record, at.tempering(SHARPER):
            close(captured(*given), dense(*given, 0.2))
            with at.tempering(None):
                close(captured(*given), plain)
        close(captured(*given), dense(*given, 0.5))
    assert torch.equal(captured(*given), plain)
    assert len(record.to_frame()) == 2 * H


def test_a_context_may_be_entered_again_also_while_it_is_open():
    given = draw()
    plain = captured(*given)
    sharp = at.tempering(SHARP)
    for _ in range(2):
        with sharp, at.tempering(SHARPER), sharp:
            close(captured(*given), dense(*given, 0.5))
        assert torch.equal(captured(*given), plain)
    watch = at.watching()
    with watch as outer:
        captured(*given)
        with watch as inner:
            captured(*given)
    assert [len(record.to_frame()) for record in (outer, inner)] == [2 * H, H]


def test_contexts_may_be_left_in_any_order():
    given = draw()
    first, second = at.tempering(SHARPER), at.tempering(SHARP)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    close(captured(*given), dense(*given, 0.5))
    second.__exit__(None, None, None)
    assert torch.equal(captured(*given), captured(*given))
    close(captured(*given), dense(*given, 1.0))


def test_a_call_with_its_own_policy_keeps_it():
    given = draw()
    with at.watching() as record, at.tempering(SHARPER):
        close(perform(asked(*given), SHARP), dense(*given, 0.5))
        close(at.attention(*given, policy=SHARP), dense(*given, 0.5))
        close(at.attention(*given, policy=None), dense(*given, 1.0))
        close(perform(asked(*given)), dense(*given, 0.2))
    frame = record.to_frame()
    assert frame.groupby("call").size().tolist() == [H] * 4
    spreads = frame.groupby("call").logit_spread.mean()
    assert (spreads / spreads[2]).tolist() == pytest.approx([2, 2, 1, 5], rel=1e-5)


@pytest.mark.parametrize("policy", [at.Adaptive(), at.EntropyTarget(0.5), at.LogLength(4)])
def test_policies_that_read_the_rows_act_as_in_attention(policy):
    given = draw()
    with at.tempering(policy):
        found = captured(*given, is_causal=True)
    close(found, at.attention(*given, is_causal=True, policy=policy))
    with at.tempering(at.Constant(3.0)):
        far(captured(*given, is_causal=True), found)


def test_gradients_flow():
    given = [x.double().requires_grad_() for x in draw()]

    def tempered(*given: Tensor) -> Tensor:
        with at.tempering(SHARP):
            return captured(*given)

    expected = torch.autograd.grad(dense(*given, 0.5).square().sum(), given)
    found = torch.autograd.grad(tempered(*given).square().sum(), given)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("policy", [0.5, "sharp", object(), at.Constant, {}])
def test_what_is_no_policy_is_refused_on_entering(policy):
    context = at.tempering(policy)
    with pytest.raises(ArgumentError, match="^policy: "), context:
        pass
    assert torch.overrides._get_current_function_mode_stack() == []


@pytest.mark.parametrize("context", [lambda model: at.tempering(SHARP, model), lambda model: at.watching(model)])
def test_what_is_no_model_is_refused(context):
    with pytest.raises(ArgumentError, match="^model: an nn.Module or None"), context("model"):
        pass


class CausalSelfAttention(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        if x.isnan().any():
            raise FloatingPointError
        parts = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return captured(*parts, is_causal=True).transpose(1, 2).flatten(2)


class Model(nn.Module):
    """Two layers of attention, and a call of it that belongs to none."""

    def __init__(self, outside: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), CausalSelfAttention(2)) for _ in range(2))
        self.outside = outside
        with torch.no_grad():
            for block in self.blocks:
                block[1].project.weight.mul_(3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        if self.outside:
            x = captured(x[:, None], x[:, None], x[:, None])[:, 0]
        return x


def by_layer(model: Model, x: Tensor, temperatures: Tensor) -> Tensor:
    """The model's output with temperatures (layers, heads), by the definition."""
    for block, temperature in zip(model.blocks, temperatures, strict=True):
        parts = block[1].project(block[0](x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        mask = as_bias(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1))
        x = x + dense(*parts, temperature[:, None, None], mask).to(x.dtype).transpose(1, 2).flatten(2)
    return x


PER_HEAD = at.PerHead({(0, 1): at.Constant(0.5), (1, None): at.Constant(0.25)})
TEMPERATURES = torch.tensor([[1.0, 0.5], [0.25, 0.25]], dtype=torch.float64)


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_a_policy_per_layer_knows_which_layer_runs():
    model, x = Model(), torch.randn(2, 5, 16)
    with at.tempering(PER_HEAD, model):
        found = model(x)
    close(found, by_layer(model, x, TEMPERATURES))
    far(found, by_layer(model, x, TEMPERATURES.flip(0)))
    far(found, by_layer(model, x, TEMPERATURES.flip(1)))
    with at.tempering(PER_HEAD, model), at.tempering(PER_HEAD, model), at.watching(model):
        close(model(x), found)


def test_a_policy_per_layer_reaches_the_weights_that_multihead_attention_returns():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x, x, x, average_attn_weights=False)[1], self.b(x, x, x, average_attn_weights=False)[1]

    model, x = Two(), 3 * torch.randn(3, 5, 16)
    plain = model(x)
    with at.tempering(PER_HEAD, model):
        sharp = model(x)
    for before, after, temperature in zip(plain, sharp, TEMPERATURES, strict=True):
        powers = before.double() ** (1 / temperature[:, None, None])
        close(after, powers / powers.sum(-1, keepdim=True))


def test_a_policy_per_layer_without_its_layers_says_to_pass_the_model():
    x = torch.randn(2, 5, 16)
    not_given = r"^model: .* a model it was not given: use tempering\(policy, model\)"
    with pytest.raises(AttemperError, match=not_given), at.tempering(PER_HEAD):
        Model()(x)
    model = Model(outside=True)
    none_of_it = r"^model: .* no module of that model .* use tempering\(policy, model\)"
    with pytest.raises(AttemperError, match=none_of_it), at.tempering(PER_HEAD, model):
        model(x)
    with pytest.raises(AttemperError, match=none_of_it), at.tempering(PER_HEAD, model):
        Model()(x)
    assert hooks(model) == 0
    model.outside = False
    with at.tempering(PER_HEAD, model):
        model(x)


def test_attention_modules_are_the_innermost_in_the_order_of_their_names():
    assert list(attention_modules(Model())) == ["blocks.0.1", "blocks.1.1"]
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2), 2)
    names = ["layers.0.self_attn", "layers.0.multihead_attn", "layers.1.self_attn", "layers.1.multihead_attn"]
    assert list(attention_modules(decoder)) == names


def test_hooks_are_made_where_names_are_wanted_alone_and_never_stay():
    model = Model()
    for context in (at.tempering(SHARP), at.tempering(SHARP, model), at.tempering(PER_HEAD), at.watching()):
        with context:
            assert hooks(model) == 0
    for context in (at.tempering(PER_HEAD, model), at.watching(model)):
        with context:
            assert hooks(model) == 2 * len(list(model.modules()))
        assert hooks(model) == 0


def test_an_exception_leaves_nothing_behind():
    model, x = Model(), torch.randn(2, 5, 16)
    plain = model(x)
    with pytest.raises(FloatingPointError), at.watching(model), at.tempering(PER_HEAD, model):
        model(torch.full_like(x, torch.nan))
    assert hooks(model) == 0
    assert torch.overrides._get_current_function_mode_stack() == []
    assert torch.equal(model(x), plain)
    with at.watching(model) as record, at.tempering(PER_HEAD, model):
        with pytest.raises(FloatingPointError):
            model(torch.full_like(x, torch.nan))
        close(model(x), by_layer(model, x, TEMPERATURES))
    assert record.to_frame().layer.unique().tolist() == ["blocks.0.1", "blocks.1.1"]


def test_a_hook_of_the_users_that_fails_does_not_shift_the_names():
    model, x = Model(), torch.randn(2, 5, 16)

    def fails(*_: object) -> None:
        raise FloatingPointError

    with at.watching(model) as record:
        for early in (True, False):
            handle = model.blocks[0].register_forward_pre_hook(fails, prepend=early)
            with pytest.raises(FloatingPointError):
                model(x)
            handle.remove()
        captured(*draw())
        model(x)
    layers = record.to_frame().layer
    assert layers[:H].isna().all()
    assert layers[H:].tolist() == ["blocks.0.1"] * 2 + ["blocks.1.1"] * 2


def test_a_module_that_fails_before_it_is_entered_leaves_the_outer_one_running():
    class Catching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            with pytest.raises(FloatingPointError):
                self.inner(x)
            return captured(x, x, x)

    def fails(*_: object) -> None:
        raise FloatingPointError

    model = Catching()
    model.inner.register_forward_pre_hook(fails)
    with at.watching(model) as record:
        model(torch.randn(1, 2, 4, 8))
    assert record.to_frame().layer.tolist() == ["", ""]


def test_what_runs_is_known_a_thread():
    class Asking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            def ask() -> None:
                seen.append(list(running.modules))

            ask()
            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()
            return x

    seen: list[list[nn.Module]] = []
    model = nn.Sequential(Asking())
    with following(model) as running:
        model(torch.zeros(1))
    assert seen == [[model, model[0]], []]
    assert running.modules == []


def test_other_threads_are_left_alone():
    given = draw()
    plain, found = captured(*given), {}

    def elsewhere() -> None:
        found["plain"] = captured(*given)
        with at.tempering(SHARPER):
            found["sharper"] = captured(*given)

    with at.watching() as record, at.tempering(SHARP):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        close(captured(*given), dense(*given, 0.5))
    assert torch.equal(found["plain"], plain)
    close(found["sharper"], dense(*given, 0.2))
    assert len(record.to_frame()) == H


def test_modes_of_others_around_and_inside_change_nothing():
    module, x = nn.MultiheadAttention(16, 2, batch_first=True), 3 * torch.randn(2, 5, 16)
    plain = module(x, x, x)[1]
    with at.tempering(SHARP):
        expected = module(x, x, x)[1]
        with torch.device("cpu"):
            close(module(x, x, x)[1], expected)
    with torch.device("cpu"), at.tempering(SHARP):
        close(module(x, x, x)[1], expected)
    far(expected, plain)


def test_torchs_switch_of_fast_paths_stays_as_it_is():
    for enabled in (False, True):
        torch.backends.mha.set_fastpath_enabled(enabled)
        with at.tempering(SHARP), at.watching():
            pass
        assert torch.backends.mha.get_fastpath_enabled() is enabled


def test_recomputing_in_backward_is_tempered_inside_the_context():
    given = [x.requires_grad_() for x in draw()]
    expected = torch.autograd.grad(dense(*given, 0.5).square().sum(), given)

    def backward(y: Tensor) -> None:
        y.backward()

    for gradients in (backward, torch.autograd.backward, lambda y: torch.autograd.grad(y, given)):
        for x in given:
            x.grad = None
        with at.tempering(SHARP):
            output = checkpoint(captured, *given, use_reentrant=False)
            found = gradients(output.square().sum()) or [x.grad for x in given]
        for a, b in zip(found, expected, strict=True):
            close(a, b)


def test_threads_may_share_a_context():
    given, found = draw(), {}
    shared = at.tempering(SHARP)
    inside, left = threading.Event(), threading.Event()

    def elsewhere() -> None:
        with shared:
            inside.set()
            left.wait(60)
            found["sharp"] = captured(*given)
        found["plain"] = captured(*given)

    thread = threading.Thread(target=elsewhere)
    with shared:
        thread.start()
        inside.wait(60)
    close(captured(*given), dense(*given, 1.0))
    left.set()
    thread.join()
    close(found["sharp"], dense(*given, 0.5))
    close(found["plain"], dense(*given, 1.0))


def test_a_thread_that_torch_brings_the_context_to_works_under_it():
    from attemper.attention import intercept

    given, found = draw(), {}

    def worker(mode: torch.overrides.TorchFunctionMode) -> None:
        with mode:
            found["sharp"] = captured(*given)
        found["plain"] = captured(*given)
        with at.tempering(SHARPER):
            found["sharper"] = captured(*given)

    with at.tempering(SHARP), at.watching() as record:
        thread = threading.Thread(target=worker, args=(intercept._here.mode,))
        thread.start()
        thread.join()
    close(found["sharp"], dense(*given, 0.5))
    close(found["plain"], dense(*given, 1.0))
    close(found["sharper"], dense(*given, 0.2))
    assert len(record.to_frame()) == H


def test_autocast_decides_the_type_as_it_does_for_torch():
    given = draw()
    with torch.autocast("cpu", torch.bfloat16):
        plain = captured(*given)
        with at.tempering(at.Constant(1.0)):
            same = captured(*given)
    assert same.dtype == plain.dtype == torch.bfloat16
    torch.testing.assert_close(same, plain, rtol=0.02, atol=0.02)


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=True), 2)


@pytest.mark.parametrize("make", [Model, encoder])
def test_a_compiled_model_is_tempered_and_watched_like_the_eager_one(make):
    torch._dynamo.reset()
    model, x = make(), torch.randn(3, 5, 16)
    compiled = torch.compile(model, backend="aot_eager")
    plain = model(x)
    close(compiled(x), plain)
    for policy in (SHARP, SHARPER, at.Adaptive(), SHARP):
        with at.tempering(policy):
            close(compiled(x), model(x))
    # what was compiled without hooks is not taken where hooks are needed
    for _ in range(2):
        with at.tempering(PER_HEAD, model), at.watching(model) as record:
            sharp = model(x)
            close(compiled(x), sharp)
        frame = record.to_frame().drop(columns="call")
        eager, other = frame[:4], frame[4:].reset_index(drop=True)
        assert eager.layer.tolist() == other.layer.tolist() and eager.layer.nunique() == 2
        torch.testing.assert_close(*(torch.tensor(f.drop(columns="layer").values) for f in (eager, other)))
        far(sharp, plain)
    close(compiled(x), plain)
    torch._dynamo.reset()


@pytest.mark.parametrize("first", ["plain", "tempered"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_compiled_encoder_is_reached_in_inference_too(first, mode):
    torch._dynamo.reset()
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), 2).eval()
    x, compiled = torch.randn(2, 7, 16), torch.compile(encoder, backend="aot_eager")
    with mode():
        plain = encoder(x)
        if first == "plain":
            close(compiled(x), plain)
        for policy in (at.Constant(0.3), at.Adaptive(), at.LogLength(2)):
            with at.tempering(policy):
                expected = encoder(x)
                with at.watching() as record:
                    close(compiled(x), expected)
            assert len(record) == 2
            far(expected, plain) if not isinstance(policy, at.Adaptive) else None
        close(compiled(x), plain)
    assert torch.backends.mha.get_fastpath_enabled()
    torch._dynamo.reset()
