"""Attention in blocks of rows: a block's logits are made once; its statistics, temperatures and output come from them.

Every case on every device, in O(keys x block) memory; for a gradient each block is made again.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...knob.learned import learned_by
from ...knob.needs import beta_of
from ...knob.policies import Policy
from ...knob.rows import RowMoments, RowStatistics, softmax_into, times
from ..cases import Case
from .block import BETA, PARAMETERS, Block, Tensors, block_of, by_key_head, prepared, within
from .places import places
from .statistics import CaseRows

NAME = "blocks"
Work = Callable[[Block], Sequence[Tensor]]


def gives_output(case: Case, policy: Policy | None, needs: frozenset[str], measure: bool) -> bool:
    return True


def gives_rows(case: Case) -> bool:
    return True


def rows(case: Case) -> CaseRows:
    return CaseRows(case, over_blocks, NAME)


def over_blocks(work: str, case: Case, beta: Tensor | None = None) -> tuple[Tensor, ...]:
    return apply(case, work_of(work, case), beta)


def work_of(name: str, case: Case) -> Work:
    """What is to be done with each block; it is kept for the backward pass, and so keeps no tensor."""
    settings, width = case.without_tensors(), case.keys + (case.sinks is not None)
    works: dict[str, Work] = {
        "attend": lambda block: _output(settings, block, block.beta)[:1],
        "moments": lambda block: _known(block.held.moments(block.beta, False)),
        "moments and variance": lambda block: _known(block.held.moments(block.beta, True)),
        "extremes": lambda block: block.held.extremes(),
        "sort": lambda block: (_sorted(block, width),),
    }
    return works[name]


def tempered(case: Case, policy: Policy | None, detach: bool, layer: int | None, measure: bool) -> tuple[Tensor, ...]:
    """The output under a policy; where `measure` asks, also entropy, logsumexp, mean, maximum and minimum under it."""
    settings = case.without_tensors()

    def work(block: Block) -> Sequence[Tensor]:
        held, beta = block.held, None
        if policy is not None:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not detach):
                rows = RowStatistics(held, layer=layer, first_head=block.first_head)
                beta = beta_of(policy, rows).to(held.top.dtype)
        if not measure or torch.is_grad_enabled():
            # a block that is made again for its gradient has been measured
            return _output(settings, block, beta)[:1]
        extremes = RowStatistics(held).at(1.0 if beta is None else beta)
        ends = extremes.max_logit, extremes.min_logit
        output, weights, scaled = _output(settings, block, beta)
        moments = held.moments_under(weights, scaled, beta, False)
        return output, moments.entropy, moments.logsumexp, moments.mean, *ends

    learns = torch.is_grad_enabled() and not detach
    return apply(case, work, parameters=tuple(learned_by(policy)) if learns else ())


def apply(case: Case, work: Work, beta: Tensor | None = None, parameters: Tensors = ()) -> tuple[Tensor, ...]:
    """What `work` gives for every block, put together; a gradient flows to all that it was made of."""
    case = case if case.keys else _with_a_key_that_none_sees(case)
    seed = int(torch.randint(2**62, ())) if case.dropout and case.value is not None else 0
    tensors = (*case.tensors, beta, *parameters)
    if not torch.is_grad_enabled() or not any(each is not None and each.requires_grad for each in tensors):
        return forward(case, work, seed, tensors)
    outputs: tuple[Tensor, ...] = Remade.apply(case, work, seed, *tensors)  # type: ignore[no-untyped-call]
    return outputs


class Remade(torch.autograd.Function):
    """Keeps nothing of a block: the backward pass makes it again."""

    @staticmethod
    def forward(ctx: Any, case: Case, work: Work, seed: int, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        ctx.settings, ctx.work, ctx.seed = case.without_tensors(), work, seed
        ctx.save_for_backward(case.mask, *tensors)
        return forward(case, work, seed, tensors)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        mask, *tensors = ctx.saved_tensors
        case = ctx.settings.with_tensors(*tensors[:BETA], mask)
        wanted = ctx.needs_input_grad[3:]
        return None, None, None, *backward(case, ctx.work, ctx.seed, tuple(tensors), wanted, gradients)


@torch.no_grad()
def forward(case: Case, work: Work, seed: int, tensors: Tensors) -> tuple[Tensor, ...]:
    outputs: list[Tensor] = []
    tensors = prepared(case, tensors)
    all_places = list(places(case))
    # one that grew with the blocks would be fresh memory every time
    size = max(place.size for place in all_places)
    spaces = [torch.empty(size, dtype=case.computed_in, device=case.query.device) for _ in range(2)]
    with torch.autocast(case.query.device.type, enabled=False):
        for number, place in enumerate(all_places):
            parts = [t if t is None else t[within(i, t, place)] for i, t in enumerate(tensors)]
            results = work(block_of(case, parts, place, seed + number, spaces))
            if not outputs:
                outputs = [_empty(case, result) for result in results]
            for output, result in zip(outputs, results, strict=True):
                output[place.rows] = result
    return tuple(outputs)


def backward(
    case: Case, work: Work, seed: int, tensors: Tensors, wanted: Sequence[bool], given: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The gradients of the tensors, each a sum over blocks in float32 at least."""
    dtype = case.computed_in
    sums: dict[int, Tensor] = {}
    with torch.enable_grad(), torch.autocast(case.query.device.type, enabled=False):
        for number, place in enumerate(places(case)):
            parts = [
                t if t is None or i >= PARAMETERS else t[within(i, t, place)].detach().to(dtype)
                for i, t in enumerate(tensors)
            ]
            leaves = {i: part.requires_grad_() for i, part in enumerate(parts) if part is not None and wanted[i]}
            results = work(block_of(case, parts, place, seed + number, None))
            pairs = [
                (result, gradient[place.rows].to(result.dtype))
                for result, gradient in zip(results, given, strict=False)
                if gradient is not None and result.requires_grad
            ]
            if not pairs:
                continue
            outputs, directions = ([pair[side] for pair in pairs] for side in (0, 1))
            found = torch.autograd.grad(outputs, list(leaves.values()), directions, allow_unused=True)
            for i, gradient in zip(leaves, found, strict=True):
                tensor = tensors[i]
                if gradient is not None and tensor is not None:
                    into = sums.setdefault(i, torch.zeros_like(tensor, dtype=dtype))
                    into[within(i, into, place)] += gradient
    return [sums[i].to(t.dtype) if t is not None and i in sums else None for i, t in enumerate(tensors)]


def _known(moments: RowMoments) -> Sequence[Tensor]:
    return [each for each in moments if each is not None]


def _sorted(block: Block, width: int) -> Tensor:
    values = block.held.sorted_logits()
    return functional.pad(values, (0, width - values.shape[-1]), value=-torch.inf)


def _output(case: Case, block: Block, beta: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and the weights and the scaled logits that it was made of."""
    held, value = block.held, block.value
    assert value is not None
    scaled = held.scaled(beta, last=True)
    weights = softmax_into(held.scratch, scaled)
    share = (~held.dead).to(weights.dtype)
    if held.sink is not None:
        log_total = torch.logsumexp(scaled, -1) if scaled.requires_grad else -weights.amax(-1).log()
        top, sink = (held.top, held.sink) if beta is None else (held.top * beta, times(held.sink, beta))
        share = share * torch.sigmoid(log_total + top - sink)
    kept = _dropped(weights, case.dropout, block.seed) if case.dropout else weights
    flat = by_key_head(kept.to(value.dtype), value)
    output = torch.bmm(flat, value.flatten(0, 1)).view(*weights.shape[:-1], value.shape[-1])
    return (output * share.unsqueeze(-1)).to(case.query.dtype), weights, scaled


def _dropped(weights: Tensor, share: float, seed: int) -> Tensor:
    """Weights of which a share became 0 and the others larger; the same ones for the same seed."""
    generator = torch.Generator(weights.device).manual_seed(seed)
    kept = torch.empty_like(weights).bernoulli_(1 - share, generator=generator)
    return weights * kept / max(1 - share, 1e-30)


def _empty(case: Case, result: Tensor) -> Tensor:
    sequences, heads, queries = case.query.shape[:3]
    if result.ndim == 3:
        return result.new_empty(sequences, heads, queries)
    # heads beside each other, as the projection that follows reads them
    return result.new_empty(sequences, queries, heads, result.shape[-1]).transpose(1, 2)


def _with_a_key_that_none_sees(case: Case) -> Case:
    nobody = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=case.query.device)
    key = functional.pad(case.key, (0, 0, 0, 1))
    value = None if case.value is None else functional.pad(case.value, (0, 0, 0, 1))
    return replace(case, key=key, value=value, mask=nobody, bias=None)
