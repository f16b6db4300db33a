"""The logits of a block, from the parts of the tensors that it is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...knob.rows import MASKED, HeldLogits
from ..cases import Case
from ..masks import not_seen
from .places import Place

QUERY, KEY, VALUE, BIAS, SINKS, BETA, PARAMETERS = range(7)
# query, key, value, bias, sinks, a beta a row, and what a policy learns
Tensors = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Block:
    """The logits of a block and what else its work reads; its rows have the shape (sequences, heads, queries)."""

    held: HeldLogits
    value: Tensor | None
    beta: Tensor | None
    first_head: int
    seed: int


def prepared(case: Case, tensors: Tensors) -> Tensors:
    """Query and key in the type that logits are computed in, once for all blocks."""
    dtype = case.computed_in
    query, key, value, *others = tensors
    assert query is not None and key is not None
    if case.precision == "exact" or query.dtype != torch.bfloat16:
        query, key = query.to(dtype), key.to(dtype)
    if value is not None and value.dtype == torch.float16:
        value = value.to(dtype)
    return query, key, value, *others


def within(number: int, tensor: Tensor, place: Place) -> Any:
    """Where the block's part of a tensor lies, which of `tensors` it may be."""
    if number in (QUERY, BETA):
        return place.rows
    if number in (KEY, VALUE):
        return place.batch, place.key_heads, place.keys
    if number == BIAS:
        own = (*place.rows, place.keys)
        return tuple(slice(None) if size == 1 else here for size, here in zip(tensor.shape, own, strict=True))
    return place.heads if number == SINKS else ...


def block_of(case: Case, parts: Sequence[Tensor | None], place: Place, seed: int, spaces: list[Tensor] | None) -> Block:
    query, key, value, bias, sinks, beta = parts[:PARAMETERS]
    assert query is not None and key is not None
    shape = (*query.shape[:3], key.shape[2])
    rooms = None if spaces is None else [space[: place.size].view(shape) for space in spaces]
    logits = _logits(case, query, key, bias, place, None if rooms is None else rooms[0])
    top = logits.detach().amax(-1)
    dead = top <= MASKED / 2
    top.masked_fill_(dead, 0)
    sink = None if sinks is None else sinks.to(top.dtype)[:, None].expand(top.shape)
    length, seen_before = None, 0
    if case.mask is None and case.bias is None:
        length = _lengths(case, place, top)
        seen_before = min(place.queries.start + 1, place.keys.stop) if case.is_causal else place.keys.stop
    below, scratch = logits.sub_(top.unsqueeze(-1)), None if rooms is None else rooms[1]
    held = HeldLogits(below, top, dead, sink, scratch=scratch, length=length, seen_before=seen_before)
    return Block(held, value, beta, place.heads.start, seed)


def _logits(case: Case, query: Tensor, key: Tensor, bias: Tensor | None, place: Place, room: Tensor | None) -> Tensor:
    """(sequences, heads, queries, keys), and MASKED where a key may not be seen."""
    keys = key.shape[2]
    rows, columns = by_key_head(query, key), key.flatten(0, 1).transpose(1, 2)
    flat = None if room is None else room.view(*rows.shape[:2], keys)
    dtype = case.computed_in
    if rows.dtype == dtype:
        start = rows.new_empty(()) if flat is None else flat
        logits = torch.baddbmm(start.expand(*rows.shape[:2], keys), rows, columns, beta=0, alpha=case.scale, out=flat)
    else:
        product = torch.bmm(rows, columns)
        logits = (product.to(dtype) if flat is None else flat.copy_(product)).mul_(case.scale)
    logits = logits.view(*query.shape[:3], keys)
    if case.softcap is not None:
        logits = logits.div_(case.softcap).tanh_()
        logits = logits * case.softcap if logits.requires_grad else logits.mul_(case.softcap)
    if bias is not None:
        logits.add_(torch.where(bias > not_seen(bias.dtype), bias.to(dtype), MASKED))
    if case.mask is not None:
        # an addition: torch fills a tenth as fast, and heads that share a mask share what is added
        logits.add_(torch.where(case.mask[within(BIAS, case.mask, place)], 0.0, MASKED))
    if case.is_causal and place.queries.start < place.keys.stop:
        # only from the first query's own key on can a key be later than a query
        own = max(place.queries.start, place.keys.start)
        later = _later(
            place.queries.stop - place.queries.start, place.keys.stop - own, own - place.queries.start, logits.device
        )
        logits[..., own - place.keys.start :].masked_fill_(later, MASKED)
    return logits


def by_key_head(rows: Tensor, key: Tensor) -> Tensor:
    """(sequences, heads, queries, n) as (sequences * key heads, heads of one * queries, n)."""
    sequences, heads, queries, width = rows.shape
    return rows.reshape(sequences * key.shape[1], heads // max(key.shape[1], 1) * queries, width)


def _later(queries: int, keys: int, offset: int, device: torch.device) -> Tensor:
    """Whether a key, the first of which is `offset` behind the first query, is later than a query."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).triu(1 - offset)


def _lengths(case: Case, place: Place, top: Tensor) -> Tensor:
    if not case.is_causal:
        return torch.full_like(top, case.keys, dtype=torch.int64)
    position = torch.arange(place.queries.start, place.queries.stop, device=top.device)
    return (position + 1).clamp(max=case.keys).expand(top.shape)
