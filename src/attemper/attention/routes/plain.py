"""Torch's own attention, where no statistic is asked for: the temperature goes into the query or the scale."""

import torch
from torch import Tensor

from ...knob.needs import beta_of
from ...knob.policies import Constant, Policy
from ...knob.rows import RowStatistics
from ..cases import Case
from . import blocks

NAME = "plain"


def gives_output(case: Case, policy: Policy | None, needs: frozenset[str], measure: bool) -> bool:
    """Where torch has a fused call for the case, so that none of its dense ways is taken."""
    on_cpu = case.query.device.type == "cpu"
    return (
        needs <= {"length"}
        and not measure
        and case.softcap is None
        and case.sinks is None
        and _takes_bias(case, policy)
        and not (on_cpu and case.dropout)
        and not (case.mask is not None and case.is_causal and not on_cpu)
        and case.value is not None
        and case.value.shape[3] == case.query.shape[3]
        and min(case.keys, *case.query.shape) > 0
    )


def tempered(
    case: Case, policy: Policy | None, detach: bool = False, layer: int | None = None, measure: bool = False
) -> tuple[Tensor, ...]:
    query, scale = case.query, case.scale
    if isinstance(policy, Constant):
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
        None if mask is None else mask.expand(*mask.shape[:2], case.queries, case.keys),
        case.dropout,
        case.is_causal,
        scale=scale,
        enable_gqa=case.key.shape[1] != case.heads,
    )
    return (output,)


def _takes_bias(case: Case, policy: Policy | None) -> bool:
    """A temperature divides the bias too, which is then no longer what was given."""
    bias = case.bias
    if bias is None:
        return True
    return policy is None and bias.dtype == case.query.dtype and not (bias.requires_grad and torch.is_grad_enabled())
