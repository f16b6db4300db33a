import math

import pytest
import torch
from torch.nn import functional as F

import attemper as at
from attemper.errors import ArgumentError, AttemperError

Q, K, V = torch.randn(3, 2, 4, 6, 8).unbind()


def refused(says, *arguments, function=at.attention, **options):
    with pytest.raises(ArgumentError, match=says):
        function(*arguments, **options)


@pytest.mark.parametrize("function", [at.attention, lambda q, k, v, *a, **o: at.attention_statistics(q, k, *a, **o)])
def test_arguments_of_both_that_do_not_fit(function):
    def no(says, *arguments, **options):
        refused(says, *arguments, function=function, **options)

    no("^query: a tensor of floating-point numbers is accepted, but 'a' came", "a", K, V)
    no("^key: a tensor of floating-point numbers is accepted, but torch.int64", Q, K.long(), V)
    no(r"^query: \(..., heads, length, head dimension\) is accepted, but \(8,\)", Q[0, 0, 0], K, V)
    no("^key: the query's torch.float32 is accepted, but torch.float64 came", Q, K.double(), V)
    no("^key: the query's device, cpu, is accepted, but device\\(type='meta'\\)", Q, K.to("meta"), V)
    no("^key: the query's head dimension, 8, is accepted, but \\(2, 4, 6, 7\\)", Q, K[..., :7], V)
    no("^key: as many dimensions as the query's, 4, is accepted", Q, K[0, 0], V)
    no("^key: 4 heads like the query's, or with enable_gqa=True", Q, K[:, :2], V[:, :2])
    no("^key: 4 heads .*, but '3 heads'", Q, K[:, :3], V[:, :3], enable_gqa=True)
    no("^query, key, value|^query, key", Q, K.repeat(2, 1, 1, 1)[:3], V.repeat(2, 1, 1, 1)[:3])
    no(r"^attn_mask: a shape that broadcasts to \(2, 4, 6, 6\) is accepted, but \(5, 6\)", Q, K, V, torch.ones(5, 6))
    no(r"^attn_mask: .* but \(1, 2, 4, 6, 6\)", Q, K, V, torch.ones(1, 2, 4, 6, 6))
    no(
        "^attn_mask: a tensor of bool or floating-point numbers is accepted, but torch.int64",
        Q,
        K,
        V,
        torch.ones(6, 6).long(),
    )
    no("^softcap: a finite number above 0 is accepted, but 0 came", Q, K, V, softcap=0)
    no(
        r"^sinks: shape \(4,\), a number a head, on cpu, is accepted, but '\(2,\) on cpu'",
        Q,
        K,
        V,
        sinks=torch.zeros(2),
    )
    no("^scale: a finite number is accepted, but nan came", Q, K, V, scale=math.nan)
    no("^precision: 'exact' or 'fast' is accepted, but 'best' came", Q, K, V, precision="best")
    nested = torch.nested.nested_tensor([Q[0], Q[0]], layout=torch.strided)
    no("^query: a padded tensor with an attn_mask is accepted, but 'a nested tensor' came", nested, K, V)


def test_arguments_of_attention_that_do_not_fit():
    refused("^value: the key's length, 6, is accepted, but \\(2, 4, 5, 8\\)", Q, K, V[:, :, :5])
    refused("^value: 4 heads like the key's is accepted, but '2 heads' came", Q, K, V[:, :2])
    refused("^dropout_p: a number within \\[0, 1\\] is accepted, but 1.5 came", Q, K, V, dropout_p=1.5)
    refused("^policy: a policy, such as at.Adaptive", Q, K, V, policy=0.5)
    refused("^policy: a policy, such as at.Adaptive", Q, K, V, policy=at.Adaptive)


class Odd:
    needs = ("entropy",)

    def __init__(self, beta):
        self.beta = beta

    def inverse_temperature(self, rows):
        return self.beta


def test_policies_that_ask_or_give_what_cannot_be():
    wishful = Odd(torch.ones(()))
    wishful.needs = ("entropy", "wisdom")
    refused("^needs of .*: fields of RowStatistics .* is accepted, but \\['wisdom'\\] came", Q, K, V, policy=wishful)
    refused(
        "^inverse temperature of .*: a number from 0 is accepted, but -1.0", Q, K, V, policy=Odd(torch.tensor(-1.0))
    )
    nothing_asked = Odd(torch.tensor(math.nan))
    nothing_asked.needs = ()
    refused("^inverse temperature of .*: a number from 0 is accepted, but nan", Q, K, V, policy=nothing_asked)
    refused("^inverse temperature of .*: a number a row", Q, K, V, policy=Odd(torch.ones(5)))
    refused("^inverse temperature of .*: a floating-point tensor is accepted, but 2 came", Q, K, V, policy=Odd(2))
    with pytest.raises(ArgumentError, match="^temperature: a finite number above 0 is accepted, but -1 came"):
        at.Constant(-1)


def test_measured_rows_say_what_they_no_longer_have():
    from attemper.attention.cases import asked
    from attemper.attention.functional import tempered

    _, rows = tempered(asked(Q, K, V), None, measure=True)
    with pytest.raises(AttemperError, match="no logits left"):
        rows.sorted_logits()
    with pytest.raises(AttemperError, match="^at: of rows that were measured on the way only entropy"):
        _ = rows.at(2.0).entropy


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_check_names_what_is_not_a_number(wrong):
    for number, name in enumerate(("query", "key", "value")):
        tensors = [Q.clone(), K.clone(), V.clone()]
        tensors[number][1, 2, 3, 4] = wrong
        refused(
            rf"^{name}: a tensor of finite numbers is accepted, but '{wrong} at \(1, 2, 3, 4\)' came",
            *tensors,
            check=True,
        )
        if number < 2:
            statistics = at.attention_statistics
            refused(f"^{name}: a tensor of finite", *tensors[:2], function=statistics, check=True)
    bias = torch.zeros(6, 6)
    bias[1, 2] = -math.inf
    assert at.attention(Q, K, V, bias, check=True).isfinite().all()
    bias[3, 4] = wrong
    refused("^attn_mask: a tensor of finite numbers and -inf", Q, K, V, bias, check=True)
    broken = Q.clone()
    broken[1, 2, 3, 4] = math.nan
    spread = at.attention(broken, K, V).isnan()
    assert spread[1, 2, 3].all()
    assert spread.sum() == 8


def test_any_leading_dimensions():
    whole = at.attention(Q, K, V, is_causal=True)
    entropy = at.attention_statistics(Q, K, is_causal=True).entropy
    assert entropy.shape == (2, 4, 6)
    for shape in ((4, 6, 8), (6, 8), (1, 2, 4, 6, 8)):
        q, k, v = ((t.reshape(1, 2, 4, 6, 8) if len(shape) == 5 else t[(0,) * (4 - len(shape))]) for t in (Q, K, V))
        assert q.shape == shape
        output, rows = at.attention(q, k, v, is_causal=True), at.attention_statistics(q, k, is_causal=True)
        expected = whole[None] if len(shape) == 5 else whole[(0,) * (4 - len(shape))]
        torch.testing.assert_close(output, expected)
        for field in ("entropy", "logsumexp", "mean_logit", "length", "max_logit", "min_logit", "variance"):
            assert getattr(rows, field).shape == shape[:-1]
        own = entropy[None] if len(shape) == 5 else entropy[(0,) * (4 - len(shape))]
        torch.testing.assert_close(rows.entropy, own)
        assert rows.sorted_logits().shape == (*shape[:-1], 6)
        assert rows.at(torch.full(shape[:-1], 2.0)).entropy.shape == shape[:-1]


def test_one_key_serves_a_batch_of_queries_and_masks_of_any_rank_broadcast():
    torch.testing.assert_close(
        at.attention(Q, K[:1], V[:1]), at.attention(Q, K[:1].repeat(2, 1, 1, 1), V[:1].repeat(2, 1, 1, 1))
    )
    five = [t.reshape(2, 1, 4, 6, 8) for t in (Q, K, V)]
    mask = torch.rand(2, 1, 1, 6, 6) > 0.3
    expected = at.attention(Q, K, V, mask[:, 0])
    torch.testing.assert_close(at.attention(*five, mask)[:, 0], expected)


def test_nothing_to_see_gives_zeros():
    for keys, queries, batch in ((0, 6, 2), (6, 0, 2), (6, 6, 0)):
        q, k, v = Q[:batch, :, :queries], K[:batch, :, :keys], V[:batch, :, :keys]
        for policy in (None, at.Adaptive(), at.CriticalScale(1.0)):
            output = at.attention(q, k, v, policy=policy)
            assert output.shape == (batch, 4, queries, 8)
            assert (output == 0).all() or keys
        rows = at.attention_statistics(q, k)
        assert rows.entropy.shape == rows.length.shape == (batch, 4, queries)
        if not keys:
            assert rows.entropy.eq(0).all() and rows.length.eq(0).all() and rows.logsumexp.eq(-math.inf).all()
    only_sink = at.attention_statistics(Q, K[:, :, :0], sinks=torch.arange(4.0))
    assert only_sink.logsumexp[0, :, 0].tolist() == [0, 1, 2, 3]
    assert only_sink.length.eq(0).all()


def test_huge_logits_and_tiny_ones():
    for scale, policy in ((1e4, at.Adaptive()), (1e-8, at.Constant(1e-6)), (1e4, at.Constant(1e-4))):
        found = at.attention(scale * Q, K, V, policy=policy)
        beta = 1 / policy.temperature if isinstance(policy, at.Constant) else 1
        expected = F.scaled_dot_product_attention(scale * beta * Q.double(), K.double(), V.double())
        assert found.isfinite().all()
        if isinstance(policy, at.Constant):
            torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-2 if scale > 1 else 1e-5)
    rows = at.attention_statistics(1e4 * Q, K)
    assert rows.entropy.isfinite().all() and rows.entropy.min() >= 0


def test_autocast_gives_it_what_it_gives_torchs_own():
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = at.attention(Q, K, V, policy=None), F.scaled_dot_product_attention(Q, K, V)
        adaptive = at.attention(Q, K.bfloat16(), V)
        rows = at.attention_statistics(Q, K)
        assert rows.entropy.dtype == torch.float32
    assert ours.dtype == theirs.dtype == adaptive.dtype == torch.bfloat16
    torch.testing.assert_close(ours, theirs)
    exact = at.attention_statistics(Q.bfloat16().double(), K.bfloat16().double()).entropy
    torch.testing.assert_close(rows.entropy.double(), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_statistics_are_exact_and_the_fast_ones_say_how_far_they_are(dtype):
    query, key = (math.sqrt(3) * torch.randn(1, 2, 256, 64, dtype=torch.float64)).to(dtype), torch.randn(1, 2, 256, 64)
    key = (math.sqrt(3) * key).to(dtype)
    expected = at.attention_statistics(query.double(), key.double())
    assert expected.variance.mean() > 1
    exact = at.attention_statistics(query, key).entropy
    fast = at.attention_statistics(query, key, precision="fast").entropy
    assert (exact - expected.entropy).abs().max() < 1e-4
    worst = (fast - expected.entropy).abs().max()
    assert worst < 0.04
    assert (worst > 1e-4) == (dtype == torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_beta_a_row_costs_no_accuracy_in_half_precision(dtype):
    query, key, value = (2 * torch.randn(3, 1, 4, 256, 64, dtype=torch.float64)).to(dtype).unbind()
    policy = at.SSMax(0.5)
    exact = at.attention(query.double(), key.double(), value.double(), policy=policy)
    beta = 0.5 * math.log(256)
    errors = [
        (found.double() - exact).square().mean().sqrt().item()
        for found in (
            at.attention(query, key, value, policy=policy),
            F.scaled_dot_product_attention(query, key, value, scale=beta / 8),
        )
    ]
    # torch's own, with a scale that is not rounded; a query times beta that is has three times that
    assert errors[0] < 1.5 * errors[1]


def test_decoding_counts_the_whole_cache():
    last = Q[:, :, -1:]
    rows = at.attention_statistics(last, K)
    assert rows.length.eq(6).all()
    full = at.attention(Q, K, V, is_causal=True, policy=at.SSMax(0.6))[:, :, -1:]
    torch.testing.assert_close(at.attention(last, K, V, policy=at.SSMax(0.6)), full)


def test_it_is_never_tempered_twice_and_routes_are_told():
    policy = at.Constant(0.5)
    expected = F.scaled_dot_product_attention(2 * Q, K, V)
    torch.testing.assert_close(at.attention(Q, K, V, policy=policy), expected, rtol=1e-5, atol=1e-6)
    with at.tempering(at.Constant(0.1)):
        torch.testing.assert_close(at.attention(Q, K, V, policy=policy), expected, rtol=1e-5, atol=1e-6)
    assert at.attention_statistics(Q, K).route == "blocks"
    assert at.RowStatistics.from_logits(torch.zeros(2, 3)).route == "held"
