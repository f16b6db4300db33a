"""A call of attention under the policies and watchers that are in force."""

import torch
from torch import Tensor, nn

from ..errors import AttemperError
from ..knob.needs import beta_of, check_heads
from ..knob.policies import Policy
from ..knob.rows import HeldLogits, RowStatistics
from .cases import Case
from .functional import tempered
from .masks import not_seen
from .stacks import innermost, tell, watched


def perform(case: Case, own: Policy | None = None, module: nn.Module | None = None, layer: int | None = None) -> Tensor:
    """The output of a call under its own policy, or else the one in force; every watcher is told what it did."""
    policy, layer = _chosen(own, layer)
    output, rows = tempered(case, policy, layer=layer, measure=watched())
    if rows is not None:
        tell(rows, module)
    return output


def perform_on(logits: Tensor) -> Tensor:
    """The weights that logits (batch, heads, queries, keys) give under the policy in force; watchers are told."""
    policy, layer = _chosen(None, None)
    check_heads(policy, layer, logits.shape[1])
    held = HeldLogits.of(logits.masked_fill(logits <= not_seen(logits.dtype), -torch.inf))
    rows, beta = RowStatistics(held, layer=layer), None
    if policy is not None:
        beta = beta_of(policy, rows)
        rows = rows.at(beta)
    if watched():
        tell(rows)
    return held.weights(beta).to(logits.dtype)


def _chosen(own: Policy | None, layer: int | None) -> tuple[Policy | None, int | None]:
    entry = innermost()
    if own is not None or entry is None:
        return own, layer
    if layer is None and entry.layer is not None:
        layer = entry.layer()
    if layer is None and needs_layer(entry.policy):
        raise AttemperError(
            "model: the policy differs from layer to layer, and this call of attention comes from "
            + ("no module of that model whose class is named attention" if entry.layer else "a model it was not given")
            + ": use tempering(policy, model) with the model that runs"
        )
    return entry.policy, layer


def needs_layer(policy: Policy | None) -> bool:
    return policy is not None and "layer" in policy.needs
