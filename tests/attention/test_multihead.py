import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attemper as at

B, L, S, E, H = 2, 5, 7, 16, 4
INF = torch.inf


def bool_padding(keys: int = L) -> Tensor:
    """True where a key is padding: the last two of the first item and the first one of the second."""
    padding = torch.zeros(B, keys, dtype=torch.bool)
    padding[0, -2:], padding[1, 0] = True, True
    return padding


def causal(queries: int = L, keys: int = L) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool).triu(1)


def per_head() -> Tensor:
    """(B * H, L, L): another mask for every item and head, each row of which sees a key."""
    forbidden = torch.rand(B * H, L, L, generator=torch.Generator().manual_seed(3)) < 0.4
    return forbidden & ~torch.eye(L, dtype=torch.bool)


def as_float(forbidden: Tensor, value: float = -INF) -> Tensor:
    return torch.zeros(forbidden.shape).masked_fill(forbidden, value)


def slopes() -> Tensor:
    return -0.7 * (torch.arange(L)[:, None] - torch.arange(L)).abs().float()


SELF = {
    "plain": ({}, {}),
    "no bias": ({"bias": False}, {}),
    "padding": ({}, {"key_padding_mask": bool_padding()}),
    "float padding": ({}, {"key_padding_mask": as_float(bool_padding())}),
    "padding of -1e9": ({}, {"key_padding_mask": as_float(bool_padding(), -1e9)}),
    "causal": ({}, {"attn_mask": causal()}),
    "causal by hint": ({}, {"attn_mask": causal(), "is_causal": True}),
    "causal by hint with padding": (
        {},
        {"attn_mask": causal(), "is_causal": True, "key_padding_mask": bool_padding().roll(1, 1)},
    ),
    "bias": ({}, {"attn_mask": slopes()}),
    "bias and padding": ({}, {"attn_mask": slopes(), "key_padding_mask": as_float(bool_padding())}),
    "mask a head": ({}, {"attn_mask": per_head()}),
    "float mask a head": ({}, {"attn_mask": as_float(per_head(), torch.finfo(torch.float32).min)}),
    "added key": ({"add_bias_kv": True}, {"key_padding_mask": bool_padding(), "attn_mask": causal()}),
    "added zero": ({"add_zero_attn": True}, {"key_padding_mask": bool_padding()}),
    "both added": ({"add_bias_kv": True, "add_zero_attn": True}, {"attn_mask": causal()}),
}
SELF["causal by hint with padding"][1]["key_padding_mask"][:, 0] = False
RETURNED = [(True, True), (True, False), (False, True)]


def made(**options: object) -> nn.MultiheadAttention:
    """Weights that give logits of standard deviation above 1, and biases that are not zero."""
    module = nn.MultiheadAttention(E, H, **options)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "bias" in name:
                parameter.normal_()
            elif "out_proj" not in name:
                parameter.mul_(2)
    return module


def dense(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    temperature: float,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Output and weights a head, by the definition, in float64; inputs (batch, length, width)."""
    parameters = {name: p.detach().double() for name, p in module.named_parameters()}
    if "in_proj_weight" in parameters:
        projections = parameters["in_proj_weight"].chunk(3)
    else:
        projections = tuple(parameters[f"{letter}_proj_weight"] for letter in "qkv")
    biases = parameters["in_proj_bias"].chunk(3) if "in_proj_bias" in parameters else (0, 0, 0)
    inputs = (x.double() for x in (query, key, value))
    q, k, v = (x @ weight.T + bias for x, weight, bias in zip(inputs, projections, biases, strict=True))
    batch, added = len(q), 0
    if module.bias_k is not None:
        k = torch.cat([k, parameters["bias_k"].expand(batch, 1, E)], 1)
        v = torch.cat([v, parameters["bias_v"].expand(batch, 1, E)], 1)
        added += 1
    if module.add_zero_attn:
        k, v = (torch.cat([x, torch.zeros(batch, 1, E, dtype=x.dtype)], 1) for x in (k, v))
        added += 1
    q, k, v = (x.view(batch, -1, H, E // H).transpose(1, 2) for x in (q, k, v))
    logits = q @ k.transpose(2, 3) / (E // H) ** 0.5
    for mask, shape in ((key_padding_mask, (batch, 1, 1, -1)), (attn_mask, (-1, H, L, key.shape[1]))):
        if mask is not None:
            mask = as_float(mask) if mask.dtype == torch.bool else mask
            mask = mask if mask.ndim == 2 and shape[1] == H else mask.view(shape)
            logits = logits + F.pad(mask.double(), (0, added))
    weights = torch.softmax(logits / temperature, -1)
    output = (weights @ v).transpose(1, 2).reshape(batch, -1, E)
    return output @ parameters["out_proj.weight"].T + parameters.get("out_proj.bias", 0), weights


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("need_weights", "average"), RETURNED)
@pytest.mark.parametrize("case", SELF)
def test_self_attention_in_every_mode(case, need_weights, average, training):
    options, masks = SELF[case]
    module = made(batch_first=True, **options).train(training)
    x = torch.randn(B, L, E)
    asked = {**masks, "need_weights": need_weights, "average_attn_weights": average}
    plain, plain_weights = module(x, x, x, **asked)
    with at.tempering(at.Constant(1.0)):
        same, same_weights = module(x, x, x, **asked)
    close(same, plain)
    with at.tempering(at.Constant(0.5)):
        sharp, sharp_weights = module(x, x, x, **asked)
    expected, expected_weights = dense(module, x, x, x, 0.5, **masks)
    close(sharp, expected)
    assert (sharp - plain).abs().max() > 0.1
    if not need_weights:
        assert plain_weights is same_weights is sharp_weights is None
        return
    close(same_weights, plain_weights)
    close(sharp_weights, expected_weights.mean(1) if average else expected_weights)
    assert (sharp_weights - plain_weights).abs().max() > 0.05


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("sizes", [{}, {"kdim": 6, "vdim": 10}, {"kdim": 6, "vdim": 10, "add_bias_kv": True}])
def test_cross_attention_with_widths_of_its_own(sizes, batch_first, need_weights):
    module = made(batch_first=batch_first, **sizes)
    query, key = torch.randn(B, L, E), torch.randn(B, S, sizes.get("kdim", E))
    value = torch.randn(B, S, sizes.get("vdim", E))
    masks = {"key_padding_mask": bool_padding(S), "attn_mask": causal(L, S)}
    masks["key_padding_mask"][1, 0] = False
    given = [x if batch_first else x.transpose(0, 1) for x in (query, key, value)]
    with at.tempering(at.Constant(0.5)):
        output, weights = module(*given, **masks, need_weights=need_weights, average_attn_weights=False)
    expected, expected_weights = dense(module, query, key, value, 0.5, **masks)
    close(output if batch_first else output.transpose(0, 1), expected)
    if need_weights:
        close(weights, expected_weights)


@pytest.mark.parametrize(("need_weights", "average"), RETURNED)
@pytest.mark.parametrize("batch_first", [True, False])
def test_input_without_a_batch(batch_first, need_weights, average):
    module = made(batch_first=batch_first)
    x, padding = torch.randn(L, E), torch.tensor([False, False, False, True, True])
    with at.tempering(at.Constant(0.5)):
        output, weights = module(
            x, x, x, key_padding_mask=padding, need_weights=need_weights, average_attn_weights=average
        )
    expected, expected_weights = dense(module, x[None], x[None], x[None], 0.5, padding[None])
    close(output, expected[0])
    if need_weights:
        close(weights, expected_weights[0].mean(0) if average else expected_weights[0])


@pytest.mark.parametrize("need_weights", [True, False])
def test_gradients_are_those_of_the_plain_module_at_one_and_of_the_dense_one_elsewhere(need_weights):
    module = made(batch_first=True).double()
    x = torch.randn(B, L, E, dtype=torch.float64, requires_grad=True)
    padding = bool_padding()
    wanted = [x, module.in_proj_weight, module.out_proj.weight]

    def gradients(y: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(y.square().sum(), wanted)

    plain = gradients(module(x, x, x, key_padding_mask=padding)[0])
    with at.tempering(at.Constant(1.0)):
        same = gradients(module(x, x, x, key_padding_mask=padding, need_weights=need_weights)[0])
    for a, b in zip(same, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    with at.tempering(at.Constant(0.5)):
        sharp = gradients(module(x, x, x, key_padding_mask=padding, need_weights=need_weights)[0])
    # twice the query's projection is half the temperature
    scaled = torch.cat([2 * module.in_proj_weight[:E], module.in_proj_weight[E:]])
    bias = torch.cat([2 * module.in_proj_bias[:E], module.in_proj_bias[E:]])
    y = x.transpose(0, 1)
    parts = (None, None, False, 0.0, module.out_proj.weight, module.out_proj.bias)
    by_hand = F.multi_head_attention_forward(y, y, y, E, H, scaled, bias, *parts, key_padding_mask=padding)[0]
    for a, b in zip(sharp, gradients(by_hand), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_gradients_of_the_weights_returned():
    module = made(batch_first=True).double()
    x = torch.randn(B, L, E, dtype=torch.float64)

    def weights(x: Tensor) -> Tensor:
        with at.tempering(at.Constant(0.5)):
            return module(x, x, x, attn_mask=causal())[1]

    assert torch.autograd.gradcheck(weights, x.requires_grad_(), atol=1e-5)


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_fully_masked_row_gives_zero(need_weights):
    module = made(batch_first=True, bias=False)
    x = torch.randn(B, L, E)
    padding = torch.zeros(B, L, dtype=torch.bool)
    padding[0] = True
    with at.tempering(at.Constant(0.5)):
        output, weights = module(x, x, x, key_padding_mask=padding, need_weights=need_weights)
    assert (output[0] == 0).all()
    close(output[1], dense(module, x, x, x, 0.5)[0][1])
    if need_weights:
        assert (weights[0] == 0).all()


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("unseen", [-INF, -1e9, torch.finfo(torch.float32).min])
def test_keys_are_counted_after_numbers_that_mean_unseen(unseen, need_weights):
    class Lengths:
        needs = ("length",)

        def inverse_temperature(self, rows):
            self.seen = rows.length.expand(rows.shape)
            return torch.ones(rows.shape)

    module, x, policy = made(batch_first=True), torch.randn(B, L, E), Lengths()
    # one row of the second item sees nothing
    masks = {"key_padding_mask": as_float(bool_padding(), unseen), "attn_mask": as_float(causal(), unseen)}
    with at.tempering(policy):
        weights = module(x, x, x, **masks, need_weights=need_weights)[1]
    assert policy.seen.tolist() == [[[1, 2, 3, 3, 3]] * H, [[0, 1, 2, 3, 4]] * H]
    assert weights is None or (weights[1, 0] == 0).all()


def test_dropout_in_training_is_torchs():
    module = made(batch_first=True, dropout=0.5)
    x = torch.randn(B, L, E)
    torch.manual_seed(1)
    plain, plain_weights = module(x, x, x)
    torch.manual_seed(1)
    with at.tempering(at.Constant(1.0)):
        same, same_weights = module(x, x, x)
    assert (plain_weights == 0).any()
    close(same, plain)
    close(same_weights, plain_weights)


def test_half_precision_keeps_its_type():
    module = made(batch_first=True).to(torch.bfloat16)
    x = torch.randn(B, L, E, dtype=torch.bfloat16)
    for need_weights in (True, False):
        with at.tempering(at.Constant(0.5)):
            output, weights = module(x, x, x, need_weights=need_weights)
        assert output.dtype == torch.bfloat16
        assert weights is None or weights.dtype == torch.bfloat16
        expected = dense(module, x, x, x, 0.5)[0]
        assert (output - expected).square().mean().sqrt() < 0.05 * expected.square().mean().sqrt()


def test_the_function_itself_is_reached_with_its_arguments_in_any_form():
    module = made()
    x = torch.randn(L, B, E)
    before = (E, H, module.in_proj_weight, module.in_proj_bias, None, None, False, 0.0)
    after = (module.out_proj.weight, module.out_proj.bias)
    expected = dense(module, *(x.transpose(0, 1),) * 3, 0.5, key_padding_mask=bool_padding())[1].mean(1)
    with at.tempering(at.Constant(0.5)):
        by_place = F.multi_head_attention_forward(x, x, x, *before, *after, True, bool_padding(), True)
        named = F.multi_head_attention_forward(
            query=x, key=x, value=x, embed_dim_to_check=E, num_heads=H, in_proj_weight=before[2],
            in_proj_bias=before[3], bias_k=None, bias_v=None, add_zero_attn=False, dropout_p=0.0,
            out_proj_weight=after[0], out_proj_bias=after[1], key_padding_mask=bool_padding(),
        )  # fmt: skip
    close(by_place[1], expected)
    close(named[1], expected)


def stacked(kind: str) -> tuple[nn.Module, tuple[Tensor, ...], dict[str, Tensor], Tensor]:
    """A model of two layers with wide logits, its inputs and masks, and which of its outputs are no padding."""
    options = {"d_model": E, "nhead": H, "dim_feedforward": 24, "dropout": 0.0, "batch_first": True}
    x, y = torch.randn(B, L, E), torch.randn(B, S, E)
    right = torch.zeros(B, L, dtype=torch.bool)
    right[0, -2:] = True
    if kind == "layer":
        model, inputs, masks = nn.TransformerEncoderLayer(**options), (x,), {"src_key_padding_mask": right}
    elif kind == "encoder":
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(**options), 2)
        inputs, masks = (x,), {"src_key_padding_mask": right}
    else:
        model = nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), 2)
        inputs = (x, y)
        masks = {"tgt_mask": causal(), "tgt_key_padding_mask": right, "memory_key_padding_mask": bool_padding(S)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "in_proj_weight" in name:
                parameter.mul_(3)
    return model, inputs, masks, ~right


def scaled(model: nn.Module, by: float) -> nn.Module:
    """The same model with every query's projection multiplied, which is what a temperature of 1 / by does."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "in_proj" in name:
                parameter[:E] *= by
    return model


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["layer", "encoder", "decoder"])
def test_transformers_of_torch(kind, training):
    model, inputs, masks, real = stacked(kind)
    model.train(training)
    with torch.set_grad_enabled(training):
        plain = model(*inputs, **masks)
        with at.tempering(at.Constant(1.0)):
            same = model(*inputs, **masks)
        with at.tempering(at.Constant(0.5)):
            sharp = model(*inputs, **masks)
        after = model(*inputs, **masks)
        close(same[real], plain[real])
        close(sharp[real], scaled(model, 2)(*inputs, **masks)[real])
    assert (sharp - plain)[real].abs().max() > 0.1
    assert torch.equal(after, plain)


def test_no_layer_takes_the_fast_path_that_hides_its_attention():
    model, inputs, masks, _ = stacked("encoder")
    model.eval()
    with torch.inference_mode(), at.watching(model) as record:
        model(*inputs, **masks)
    assert list(record.to_frame().layer.unique()) == ["layers.0.self_attn", "layers.1.self_attn"]


def test_a_torch_whose_function_changed_is_refused_by_name(monkeypatch):
    from attemper.attention import multihead

    monkeypatch.setattr(multihead, "TORCHS", lambda *_: None)
    module = made()
    x = torch.randn(L, B, E)
    with (
        at.tempering(at.Constant(0.5)),
        pytest.raises(at.AttemperError, match="^multi_head_attention_forward of torch .* no longer calls"),
    ):
        module(x, x, x)
