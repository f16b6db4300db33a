import math

import pytest
import torch

import attemper as at
from attemper.attention.cases import asked
from attemper.attention.masks import not_seen
from attemper.attention.routes import reference

INF = math.inf


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_what_models_write_for_not_seen_is_not_seen(dtype):
    written = {torch.finfo(dtype).min, -INF} | ({-1e9} if dtype != torch.float16 else set())
    for number in written:
        assert torch.tensor(number).to(dtype).item() <= not_seen(dtype)
    assert torch.tensor(-30000.0).to(dtype).item() > not_seen(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("policy", [None, at.LogLength(2), at.Adaptive(), at.EntropyTarget(0.5)])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_finite_mask_means_what_a_boolean_one_means(dtype, policy, compiled):
    query, key, value = torch.randn(3, 1, 2, 6, 8).to(dtype).unbind()
    seen = torch.ones(6, 6, dtype=torch.bool).tril()
    seen[:, 1] = False
    seen[0, 0] = True
    finite = torch.zeros(6, 6, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
    if dtype != torch.float16:
        finite[4, 1] = -1e9
    attention = torch.compile(at.attention, backend="eager") if compiled else at.attention
    found = attention(query, key, value, finite, policy=policy)
    expected = at.attention(query, key, value, seen, policy=policy)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 2e-2)
    rows = at.attention_statistics(query, key, finite)
    assert rows.length[0, 0].tolist() == [1, 1, 2, 3, 4, 5]
    torch.testing.assert_close(rows.entropy, at.attention_statistics(query, key, seen).entropy)
    case = asked(query, key, value, finite)
    torch.testing.assert_close(reference.rows(case).length, rows.length)


def test_a_row_of_nothing_but_such_numbers_has_no_entropy_and_no_output():
    query, key, value = torch.randn(3, 1, 2, 6, 8).unbind()
    mask = torch.zeros(6, 6)
    mask[2] = torch.finfo(torch.float32).min
    rows = at.attention_statistics(query, key, mask)
    assert rows.length[0, :, 2].tolist() == [0, 0]
    assert rows.entropy[0, :, 2].tolist() == [0, 0]
    assert at.attention(query, key, value, mask, policy=at.Adaptive())[:, :, 2].abs().max() == 0
    # where torch's own call averages, too
    for policy in (None, at.Constant(1.0), at.Constant(0.5)):
        assert at.attention(query, key, value, mask, policy=policy)[:, :, 2].abs().max() == 0


def test_a_bias_that_was_added_to_not_seen_makes_nothing_seen():
    query, key = torch.randn(2, 1, 1, 4, 8, dtype=torch.float64).unbind()
    mask = torch.zeros(4, 4, dtype=torch.float64)
    mask[:, 2:] = -1e9
    assert at.attention_statistics(query, key, mask + 100).length.flatten().tolist() == [2] * 4


def test_a_finite_mask_and_a_policy_of_lengths_make_one_graph():
    torch._dynamo.reset()
    query, mask = torch.randn(1, 2, 9, 8), torch.zeros(9, 9)
    function = torch.compile(lambda q, m: at.attention(q, q, q, m, policy=at.LogLength(4)), backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    torch.testing.assert_close(function(query, mask), at.attention(query, query, query, mask, policy=at.LogLength(4)))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_no_gradient_flows_to_what_is_not_seen():
    query, key, value = torch.randn(3, 1, 2, 4, 8).unbind()
    bias = torch.tensor([0.0, -1e9, -INF, 1.0]).requires_grad_()
    at.attention(query, key, value, bias, policy=at.Adaptive()).square().sum().backward()
    assert bias.grad[1:3].tolist() == [0, 0]
    assert bias.grad[[0, 3]].abs().min() > 0
