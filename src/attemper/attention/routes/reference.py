"""Attention written for reading: dense, in float64. The other routes are tested against it; no call takes it."""

import torch
from torch import Tensor

from ...knob.rows import HeldLogits
from ..cases import Case


def logits(case: Case) -> Tensor:
    """(batch, heads, queries, keys): softcap(scale * q.k) + bias, and -inf where a key may not be seen."""
    query, key = case.query.double(), case.key.double()
    key = key.repeat_interleave(case.heads // key.shape[1], 1)
    values = case.scale * query @ key.transpose(2, 3)
    if case.softcap is not None:
        values = case.softcap * torch.tanh(values / case.softcap)
    if case.bias is not None:
        values = values + case.bias.double()
    return values.masked_fill(~case.visible(0, case.queries), -torch.inf)


def rows(case: Case) -> HeldLogits:
    sink = None if case.sinks is None else case.sinks.double()[:, None].expand(case.query.shape[:3])
    return HeldLogits.of(logits(case), sink)


def attend(case: Case, beta: Tensor | None) -> Tensor:
    """Sums of the values under softmax(beta * logits), the sink among the logits but not among the values."""
    values = logits(case)
    assert case.value is not None
    value = case.value.double().repeat_interleave(case.heads // case.value.shape[1], 1)
    if case.sinks is not None:
        sink = case.sinks.double()[:, None, None].expand(*values.shape[:3], 1)
        values = torch.cat([values, sink], -1)
        value = torch.cat([value, torch.zeros_like(value[:, :, :1])], 2)
    unseen = values == -torch.inf
    if beta is not None:
        values = values.masked_fill(unseen, 0) * beta.double().unsqueeze(-1)
    dead = unseen.all(-1, keepdim=True)
    values = values.masked_fill(unseen & ~dead, -torch.inf)
    return torch.softmax(values, -1).masked_fill(dead, 0) @ value
