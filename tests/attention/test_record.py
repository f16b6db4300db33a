import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import attemper as at
from attemper.attention.active import perform
from attemper.attention.cases import asked
from attemper.attention.record import Record

COLUMNS = ["call", "layer", "head", "rows", "length", "entropy", "normalised_entropy", "logit_spread", "largest_weight"]
B, H, L, D = 3, 2, 6, 8
INF = torch.inf


def by_hand(logits: Tensor, least: int = 1) -> list[list[float]]:
    """The columns from `rows` on, a row and a head at a time, from logits (batch, heads, queries, keys)."""
    table = []
    for head in logits.double().unbind(1):
        rows = [row[row > -INF] for row in head.flatten(0, 1)]
        rows = [row for row in rows if len(row) >= least]
        weights = [torch.softmax(row, 0) for row in rows]
        entropies = [-(p * p.log()).sum().item() for p in weights]
        shares = [h / math.log(len(row)) for h, row in zip(entropies, rows, strict=True) if len(row) > 1]
        columns = [
            [len(row) for row in rows],
            entropies,
            shares,
            [(row.max() - row.min()).item() for row in rows],
            [p.max().item() for p in weights],
        ]
        table.append([len(rows), *(np.mean(column) if column else math.nan for column in columns)])
    return table


def logits_of(query: Tensor, key: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    return query.double() @ key.double().transpose(2, 3) / query.shape[-1] ** 0.5 + bias


def draw() -> tuple[Tensor, Tensor, Tensor]:
    return 2 * torch.randn(B, H, L, D), torch.randn(B, H, L, D), torch.randn(B, H, L, D)


def mask() -> Tensor:
    """One row that sees nothing, one that sees one key, and others."""
    seen = torch.rand(B, 1, L, L) < 0.6
    seen[0, 0, 0], seen[1, 0, 2] = False, False
    seen[1, 0, 2, 3] = True
    return seen


def close(found: pd.DataFrame, expected: list[list[float]]) -> None:
    np.testing.assert_allclose(found[COLUMNS[3:]].to_numpy(float), expected, rtol=1e-5, atol=1e-6)


def test_a_row_per_call_and_head_with_means_over_the_rows():
    first, second = draw(), draw()
    seen = mask()
    with at.watching() as record:
        sdpa(*first, attn_mask=seen)
        sdpa(*second, is_causal=True)
    frame = record.to_frame()
    assert frame.columns.tolist() == COLUMNS
    assert frame.call.tolist() == frame.layer.tolist() == [0, 0, 1, 1]
    assert frame["head"].tolist() == [0, 1, 0, 1]
    bias = torch.zeros(seen.shape).masked_fill(~seen, -INF)
    triangle = torch.zeros(L, L).masked_fill(torch.ones(L, L, dtype=torch.bool).triu(1), -INF)
    close(frame[:2], by_hand(logits_of(*first[:2], bias)))
    close(frame[2:], by_hand(logits_of(*second[:2], triangle)))
    assert frame["rows"].tolist() == [B * L - 1] * 2 + [B * L] * 2


def test_rows_are_measured_as_they_were_used():
    given = draw()
    with at.tempering(at.Constant(0.5)), at.watching() as inside:
        sdpa(*given)
    with at.watching() as outside, at.tempering(at.Constant(0.5)):
        sdpa(*given)
    for record in (inside, outside):
        close(record.to_frame(), by_hand(2 * logits_of(*given[:2])))


@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention_is_measured_once_a_call_whether_it_returns_weights_or_not(need_weights):
    module = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x, padding = 3 * torch.randn(2, 5, 16), torch.zeros(2, 5, dtype=torch.bool)
    padding[0, 3:] = True
    with torch.no_grad(), at.watching(module) as record, at.tempering(at.Constant(0.5)):
        module(x, x, x, key_padding_mask=padding, need_weights=need_weights)
    query, key, _ = (x @ module.in_proj_weight.T).view(2, 5, 3, 2, 8).permute(2, 0, 3, 1, 4)
    bias = torch.zeros(2, 1, 1, 5).masked_fill(padding[:, None, None], -INF)
    frame = record.to_frame()
    close(frame, by_hand(2 * logits_of(query.detach(), key.detach()) + bias))
    assert frame.layer.tolist() == ["", ""]


class Attention(nn.Module):
    """Calls torch, or like a Hugging Face model of ours `perform` with its own policy."""

    def __init__(self, own: at.Constant | None = None) -> None:
        super().__init__()
        self.own = own
        self.inner = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        return sdpa(x, x, x) if self.own is None else perform(asked(x, x, x), self.own, self, 0)


def test_a_call_has_the_name_of_the_innermost_module_that_runs():
    model = nn.Sequential(nn.Sequential(nn.ReLU(), Attention()), Attention(at.Constant(0.5)), Attention())
    x = torch.randn(1, 2, 4, 8)
    with at.watching(model) as record:
        model(x)
        sdpa(x, x, x)
        model[2](x)
    frame = record.to_frame()
    assert frame.layer[:6].tolist() == ["0.1", "0.1", "1", "1", "2", "2"]
    assert frame.layer[6:8].isna().all()
    assert frame.layer[8:].tolist() == ["2", "2"]
    assert frame.call.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_a_call_that_names_a_module_of_the_model_has_the_name_of_that():
    class Calling(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for module in (model[0], stranger):
                perform(asked(x, x, x), None, module)
            return x

    model, stranger = nn.Sequential(nn.Identity(), Calling()), nn.Identity()
    x = torch.randn(1, 1, 4, 8)
    with at.watching(model) as record:
        model(x)
        model[1](x)
        perform(asked(x, x, x), None, stranger)
    layers = record.to_frame().layer
    assert layers[:4].tolist() == ["0", "1", "0", "1"]
    assert layers[4:].isna().tolist() == [True]


def test_a_model_with_its_own_policy_is_recorded_once_and_under_that():
    model = nn.Sequential(Attention(at.Constant(0.5)))
    x = torch.randn(1, 2, 4, 8)
    with at.watching() as outer, at.tempering(at.Constant(0.1)), at.watching(model) as inner:
        model(x)
    for record in (outer, inner):
        close(record.to_frame(), by_hand(2 * logits_of(x, x)))
    assert inner.to_frame().layer.tolist() == ["0", "0"]
    assert outer.to_frame().layer.tolist() == [0, 0]


def test_rows_may_be_chosen():
    given = draw()
    with at.watching(choose=lambda rows: rows.length >= 0.75 * rows.length.max()) as record:
        sdpa(*given, is_causal=True)
    triangle = torch.zeros(L, L).masked_fill(torch.ones(L, L, dtype=torch.bool).triu(1), -INF)
    expected = by_hand(logits_of(*given[:2], triangle), least=5)
    assert expected[0][0] == 2 * B
    close(record.to_frame(), expected)


def test_means_over_no_rows_are_nan():
    given = draw()
    with at.watching() as record:
        sdpa(*given, attn_mask=torch.zeros(L, L, dtype=torch.bool))
        sdpa(*given, attn_mask=torch.eye(L, dtype=torch.bool))
    frame = record.to_frame()
    assert frame["rows"].tolist() == [0, 0, B * L, B * L]
    assert frame.loc[:1, COLUMNS[4:]].isna().all(axis=None)
    assert frame.normalised_entropy.isna().all()
    assert (
        frame.loc[2:, ["length", "entropy", "logit_spread", "largest_weight"]].to_numpy().tolist() == [[1, 0, 0, 1]] * 2
    )


def test_nothing_seen_is_an_empty_frame_with_its_columns():
    with at.watching() as record:
        pass
    frame = record.to_frame()
    assert frame.empty and frame.columns.tolist() == COLUMNS


def test_gradients_pass_a_watcher_by_and_are_not_kept():
    given = [x.requires_grad_() for x in draw()]
    expected = torch.autograd.grad(sdpa(*given).square().sum(), given)
    with at.watching() as record, at.tempering(at.Adaptive()):
        sdpa(*given)
    with at.watching() as record:
        found = torch.autograd.grad(sdpa(*given).square().sum(), given)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert not record._calls[0][1].requires_grad


def test_what_is_kept_of_a_call_does_not_grow_with_its_length():
    record = Record()
    for length in (2, 2000):
        record.take(at.attention_statistics(*torch.randn(2, 1, 3, length, 4)))
    sums = [sums for _, sums in record._calls]
    assert [s.shape for s in sums] == [(3, 7), (3, 7)]
    assert [s.untyped_storage().nbytes() for s in sums] == [3 * 7 * 8] * 2
    assert sums[0].dtype == torch.float64


def test_a_model_whose_attention_nobody_sees_is_warned_about(recwarn):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    model = transformers.LlamaModel(config)
    model.set_attn_implementation("eager")
    ids = torch.zeros(1, 4, dtype=torch.long)
    with pytest.warns(UserWarning, match="saw no attention of LlamaModel.*at.huggingface.temper"), at.watching(model):
        model(ids)
    at.huggingface.temper(model, at.Constant(1.0))
    with at.watching(model) as record:
        model(ids)
    assert len(record) == 1
    with at.watching(model):
        pass
    assert not [w for w in recwarn if "saw no attention" in str(w.message)]
