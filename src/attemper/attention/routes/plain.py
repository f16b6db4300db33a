"""Torch's own attention, where no statistic is asked for: the temperature goes into the query or the scale."""

import torch
from torch import Tensor

from ...knob.needs import beta_of
from ...knob.policies import Constant, Policy
from ...knob.rows import RowStatistics
from ...knob.softmax import HALVES
from ..cases import Case
from ..masks import not_seen
from . import blocks

NAME = "plain"


def gives_output(case: Case, policy: Policy | None, needs: frozenset[str], measure: bool) -> bool:
    """Where nothing but lengths is asked for and torch has a fused call for the case: its other ways are dense."""
    query, value = case.query, case.value
    return (
        needs <= {"length"}
        and not measure
        and case.softcap is None
        and case.sinks is None
        and _takes_bias(case, policy)
        and case.scale > 0
        and not (case.is_causal and (case.mask is not None or case.bias is not None))
        and value is not None
        and value.shape[3] == query.shape[3]
        and min(case.keys, *query.shape) > 0
        and (query.device.type != "cpu" or _cpu_takes(case, policy))
    )


def tempered(case: Case, policy: Policy | None, detach: bool, layer: int | None, measure: bool) -> tuple[Tensor, ...]:
    query, scale = case.query, case.scale
    if type(policy) is Constant:
        scale = scale / policy.temperature
    elif policy is not None:
        beta = beta_of(policy, RowStatistics(blocks.rows(case), layer=layer))
        query = (query * (beta.detach() if detach else beta).unsqueeze(-1)).to(query.dtype)
    mask = case.mask if case.bias is None else case.bias
    # not by its public name: whoever tempers or watches that one must not see this call
    output: Tensor = torch.ops.aten.scaled_dot_product_attention(
        query,
        case.key,
        case.value,
        mask,
        case.dropout,
        case.is_causal,
        scale=scale,
        enable_gqa=case.key.shape[1] != case.heads,
    )
    if case.bias is None:
        return (output,)
    # of a row whose numbers all say "not seen" torch gives the average
    dead = case.bias.detach().amax(-1, keepdim=True) <= not_seen(case.bias.dtype)
    return (output.masked_fill(dead, 0),)


def _cpu_takes(case: Case, policy: Policy | None) -> bool:
    layouts = all(t is not None and t.stride(3) == 1 for t in (case.query, case.key, case.value))
    # a query times its beta would be rounded to half precision, and blocks are no slower there
    rounded = policy is not None and type(policy) is not Constant and case.query.dtype in HALVES
    return layouts and not rounded and not case.dropout


def _takes_bias(case: Case, policy: Policy | None) -> bool:
    """A temperature divides the bias too, which is then no longer what was given."""
    bias = case.bias
    if bias is None:
        return True
    return policy is None and bias.dtype == case.query.dtype and not (bias.requires_grad and torch.is_grad_enabled())
