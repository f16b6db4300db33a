import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import attemper as at
from attemper.attention.cases import asked
from attemper.attention.functional import tempered
from attemper.attention.routes import blocks, compiled, for_output, for_rows, places, plain, reference
from attemper.knob.needs import needs_of

INF = math.inf
FIELDS = ("entropy", "logsumexp", "mean_logit", "length", "max_logit", "min_logit", "variance")
MEASURED = ("entropy", "logsumexp", "mean_logit", "max_logit", "min_logit")
POLICIES = {
    "none": None,
    "constant": at.Constant(0.6),
    "yarn": at.Yarn(4.0),
    "log-length": at.LogLength(3),
    "ssmax": at.SSMax(0.7),
    "llama4": at.Llama4(2, 0.3),
    "adaptive": at.Adaptive(),
    "target": at.EntropyTarget(0.5),
    "critical": at.CriticalScale(1.5),
    "per-head": at.PerHead({(0, 0): at.Constant(0.5), (0, 1): at.Adaptive()}, default=at.LogLength(2)),
}
ERRORS = {torch.float64: 1e-9, torch.float32: 3e-5, torch.bfloat16: 3e-5, torch.float16: 3e-5}
ROUNDING = {torch.float64: 1e-9, torch.float32: 3e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}


@pytest.fixture
def small_blocks(monkeypatch):
    """So small that a case of a few rows takes several blocks."""
    monkeypatch.setattr(places, "FOR_A_THREAD", 24)
    monkeypatch.setattr(places, "ROWS", 2)


@st.composite
def cases(draw):
    """Arguments of attention: tensors, mask and settings of every kind that it takes."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    batch, key_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    queries, keys = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    width, value_width = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    dtype = draw(st.sampled_from([torch.float64, torch.float32, torch.float32, torch.bfloat16, torch.float16]))
    spread = draw(st.sampled_from([0.1, 1.0, 3.0]))
    heads = key_heads * group

    def normal(*shape, scale=1.0):
        return (scale * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype)

    query = normal(batch, heads, queries, width, scale=spread)
    key = normal(batch, key_heads, keys, width, scale=spread)
    value = normal(batch, key_heads, keys, draw(st.sampled_from([width, width, value_width])))
    mask_shape = tuple(draw(st.sampled_from([1, size])) for size in (batch, heads, queries, keys))
    kind = draw(st.sampled_from(["none", "none", "bool", "float", "bias", "window", "padding"]))
    mask = None
    if kind == "bool":
        mask = torch.rand(mask_shape, generator=generator) > 0.4
    elif kind == "float":
        mask = torch.where(torch.rand(mask_shape, generator=generator) > 0.4, 0.0, -INF).to(dtype)
    elif kind == "bias":
        mask = normal(*mask_shape, scale=2.0)
        mask[torch.rand(mask_shape, generator=generator) > 0.8] = -INF
    elif kind == "window":
        distance = torch.arange(queries)[:, None] - torch.arange(keys)
        mask = (distance >= 0) & (distance < 3)
    elif kind == "padding":
        mask = (torch.arange(keys) >= draw(st.integers(0, keys)))[None, None, None]
    return {
        "query": query,
        "key": key,
        "value": value,
        "attn_mask": mask,
        "is_causal": draw(st.booleans()),
        "scale": draw(st.sampled_from([None, 0.5, 1.0])),
        "enable_gqa": group > 1,
        "softcap": draw(st.sampled_from([None, None, None, None, 1.0, 5.0])),
        "sinks": draw(st.sampled_from([None, None, None, normal(heads, scale=2.0)])),
    }


def by_hand(case, policy_of_row=lambda logits, length: 1.0):
    """(outputs, statistics) by the definition, a row at a time, in NumPy's float64."""
    q, k, v = (case[name].double().numpy() for name in ("query", "key", "value"))
    (batch, heads, queries, width), keys = q.shape, k.shape[2]
    group = heads // k.shape[1]
    scale = 1 / math.sqrt(width) if case["scale"] is None else case["scale"]
    mask = np.zeros((1, 1, 1, 1))
    if case["attn_mask"] is not None:
        given_mask = case["attn_mask"]
        mask = torch.where(given_mask, 0.0, -INF) if given_mask.dtype == torch.bool else given_mask
        mask = mask.double().numpy()
    mask = np.broadcast_to(mask, (batch, heads, queries, keys))
    outputs = np.zeros((batch, heads, queries, v.shape[3]))
    found = {name: np.zeros((batch, heads, queries)) for name in FIELDS}
    for b, h, i in np.ndindex(batch, heads, queries):
        logits = scale * k[b, h // group] @ q[b, h, i]
        if case["softcap"]:
            logits = case["softcap"] * np.tanh(logits / case["softcap"])
        logits = logits + mask[b, h, i]
        if case["is_causal"]:
            logits[i + 1 :] = -INF
        seen = np.flatnonzero(logits > -INF)
        entries = logits[seen]
        if case["sinks"] is not None:
            entries = np.append(entries, float(case["sinks"][h]))
        row = dict.fromkeys(FIELDS, 0.0) | {"logsumexp": -INF, "max_logit": -INF, "min_logit": INF}
        if len(entries):
            beta = policy_of_row(entries, len(seen))
            shares = np.exp(beta * (entries - entries.max()))
            shares /= shares.sum()
            outputs[b, h, i] = shares[: len(seen)] @ v[b, h // group][seen]
            plain_shares = np.exp(entries - entries.max())
            total = plain_shares.sum()
            plain_shares /= total
            mean = plain_shares @ entries
            row = {
                "entropy": -sum(p * math.log(p) for p in plain_shares if p > 0),
                "logsumexp": entries.max() + math.log(total),
                "mean_logit": mean,
                "length": len(seen),
                "max_logit": entries.max(),
                "min_logit": entries.min(),
                "variance": plain_shares @ (entries - mean) ** 2,
            }
        for name, number in row.items():
            found[name][b, h, i] = number
    return outputs, found


def case_of(case):
    return asked(**case)


def largest(tensor):
    finite = tensor[tensor.isfinite()]
    return 1 + (finite.abs().max().item() if finite.numel() else 0)


def close(found, expected, error):
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=error)


@settings(max_examples=150)
@given(cases())
def test_the_reference_is_the_definition(case):
    outputs, statistics = by_hand(case)
    rows = at.RowStatistics(reference.rows(case_of(case)))
    np.testing.assert_allclose(reference.attend(case_of(case), None), outputs, atol=1e-10)
    for name in FIELDS:
        np.testing.assert_allclose(getattr(rows, name), statistics[name], atol=1e-9, err_msg=name)


@settings(max_examples=100)
@given(cases())
def test_the_published_temperature_is_the_definition(case):
    def beta(entries, length):
        shares = np.exp(entries - entries.max())
        shares /= shares.sum()
        entropy = -sum(p * math.log(p) for p in shares if p > 0)
        polynomial = -0.037 * entropy**4 + 0.481 * entropy**3 - 2.3 * entropy**2 + 4.917 * entropy - 1.791
        return max(polynomial, 1) if entropy > 0.5 else 1

    outputs, _ = by_hand(case, beta)
    error = ROUNDING[case["query"].dtype] * largest(case["value"])
    np.testing.assert_allclose(at.attention(**case).double(), outputs, atol=2 * error)


def agree_with_float64(case, name, way, measure):
    policy, dtype = POLICIES[name], case.query.dtype
    rows = at.RowStatistics(reference.rows(case), layer=0)
    beta = None if policy is None else policy.inverse_temperature(rows)
    expected = reference.attend(case, beta)
    used = rows if beta is None else rows.at(beta)
    results = way.tempered(case, policy, False, 0, measure)
    # two logits that nearly tie have a gap, and so a critical scale, that float32 does not resolve
    firm = torch.ones(rows.shape, dtype=torch.bool) if beta is None else beta <= 30
    sharpest = 1 if beta is None else largest(beta[firm])
    error = 2 * ROUNDING[dtype] * largest(case.value) + ERRORS[dtype] * sharpest**2 * largest(rows.max_logit)
    close(results[0][firm], expected[firm], error + (2e-3 if name == "target" else 0))
    assert results[0].dtype == dtype
    if measure:
        error = ERRORS[dtype] * sharpest**2 * largest(rows.max_logit) + (2e-3 if name == "target" else 0)
        for found, field in zip(results[1:], MEASURED, strict=True):
            close(found[firm], getattr(used, field)[firm], error)


def statistics_agree_with_float64(case, way):
    rows, found = at.RowStatistics(reference.rows(case)), at.RowStatistics(way.rows(case))
    error = ERRORS[case.query.dtype]
    for field in FIELDS:
        power = 2 if field == "variance" else 1
        close(getattr(found, field), getattr(rows, field), error * largest(rows.max_logit) ** power)
    close(found.sorted_logits(), rows.sorted_logits(), error * largest(rows.max_logit))


class Chosen:
    """Whichever route the package itself takes."""

    @staticmethod
    def tempered(case, policy, detach, layer, measure):
        output, used = tempered(case, policy, detach=detach, layer=layer, measure=measure)
        return (output, *(getattr(used, field) for field in MEASURED)) if measure else (output,)

    @staticmethod
    def rows(case):
        return for_rows(case).rows(case)


@pytest.mark.parametrize("way", [blocks, compiled, Chosen], ids=["blocks", "operators", "chosen"])
def test_three_hundred_cases_agree_with_float64(way, small_blocks):
    @settings(max_examples=300)
    @given(cases(), st.sampled_from(sorted(POLICIES)), st.booleans())
    def check(case, name, measure):
        assume(name != "per-head" or case["query"].shape[1] > 1)
        agree_with_float64(case_of(case), name, way, measure)
        statistics_agree_with_float64(case_of(case), way)

    check()


@pytest.mark.parametrize("side", ["left", "right"])
def test_sequences_that_are_padded_differently(side, small_blocks, monkeypatch):
    monkeypatch.setattr(places, "FOR_A_THREAD", 10**6)
    seen = torch.arange(9)[None] < torch.tensor([[2], [9], [5]])
    mask = (seen.flip(1) if side == "left" else seen)[:, None, None]
    query, key, value = torch.randn(3, 3, 2, 9, 4).unbind()
    expected = reference.attend(asked(query, key, value, mask), None)
    close(at.attention(query, key, value, mask, policy=at.LogLength(100), softcap=1e6), expected, 1e-5)
    assert at.attention_statistics(query, key, mask).length[:, 0, 0].tolist() == [2, 9, 5]


@pytest.mark.parametrize("policy", [at.Constant(0.5), at.LogLength(2), at.Adaptive()])
def test_a_temperature_divides_a_bias_too(policy):
    query, key, value, bias = (
        torch.randn(1, 2, 5, 4),
        torch.randn(1, 2, 7, 4),
        torch.randn(1, 2, 7, 4),
        torch.randn(5, 7),
    )
    case = asked(query, key, value, bias)
    beta = policy.inverse_temperature(at.RowStatistics(reference.rows(case)))
    assert beta.max() > 1.2
    close(at.attention(query, key, value, bias, policy=policy), reference.attend(case, beta), 1e-5)


@settings(max_examples=300)
@given(cases(), st.sampled_from(["none", "constant", "yarn", "log-length", "ssmax", "llama4"]))
def test_three_hundred_cases_of_torchs_own_call_agree_with_float64(case, name):
    plain_ones = {"softcap": None, "sinks": None, "value": 1 - case["key"].flip(2)}
    if case["attn_mask"] is not None:
        plain_ones["is_causal"] = False
        name = "none" if case["attn_mask"].is_floating_point() else name
    if case["query"].dtype in (torch.bfloat16, torch.float16):
        # a beta a row would be rounded with the query
        name = name if name in ("none", "constant") else "constant" if plain_ones.get("is_causal", True) else "none"
    case = case_of(case | plain_ones)
    policy = POLICIES[name]
    needs = frozenset() if policy is None else needs_of(policy, 0)
    assert for_output(case, policy, needs, False) is plain
    assert for_output(case, policy, needs, True) is blocks
    agree_with_float64(case, name, plain, False)
