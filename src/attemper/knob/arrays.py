"""Softmax of bare logits at the temperature that a policy sets, for tensors and for arrays of other libraries."""

from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from ..errors import ArgumentError
from .needs import beta_of, check_policy
from .policies import Adaptive, Policy
from .rows import HeldLogits, RowStatistics, rows_last

Array = TypeVar("Array")
ACCEPTED = "a tensor or an array of floating-point numbers (NumPy, JAX or another of the array API)"


def adaptive_softmax(logits: Array, policy: Policy | None = Adaptive(), dim: int = -1) -> Array:  # noqa: B008
    """softmax(beta * logits) over `dim`, with a beta a row from `policy` (None: 1); same kind, shape and type.

    Entries of -inf get exactly 0 and count as absent; a row of nothing but -inf gives zeros, not NaN. Half precision is
    computed in float32. Rows for a policy that tells heads apart are (..., heads, queries, n). Tensors differentiate;
    other arrays pass through torch by DLPack, outside `jax.jit` and `jax.grad` alone.

    >>> adaptive_softmax(torch.tensor([2.0, 1.0, 0.0, -torch.inf])).round(decimals=3)
    tensor([0.6650, 0.2450, 0.0900, 0.0000])
    >>> adaptive_softmax(np.zeros((1, 2)))
    array([[0.5, 0.5]])
    """
    if policy is not None:
        check_policy(policy)
    if isinstance(logits, Tensor):
        return _tempered(logits, policy, dim)  # type: ignore[return-value]
    with torch.no_grad():
        result = _tempered(_tensor(logits), policy, dim).contiguous()
    handed_back: Array = _namespace(logits).from_dlpack(result)
    return handed_back


def _tempered(logits: Tensor, policy: Policy | None, dim: int) -> Tensor:
    held = HeldLogits.of(rows_last(logits, dim))
    beta = None if policy is None else beta_of(policy, RowStatistics(held))
    return held.weights(beta).to(logits.dtype).movedim(-1, dim)


def _tensor(array: Any) -> Tensor:
    if isinstance(array, np.ma.MaskedArray):
        raise ArgumentError("logits", "a masked array", "an array with -inf where entries are masked")
    namespace = _namespace(array)
    try:
        # a copy: torch ends the process at a negative stride
        return from_dlpack(namespace.asarray(array, copy=True))
    except Exception as error:
        came = f"{type(array).__name__} of {getattr(array, 'dtype', None)}"
        accepted = f"{ACCEPTED} whose numbers DLPack can hand over (within jax.jit or jax.grad there are none yet)"
        raise ArgumentError("logits", came, accepted) from error


def _namespace(array: Any) -> Any:
    if not hasattr(array, "__array_namespace__") or isinstance(array, type):
        raise ArgumentError("logits", type(array), ACCEPTED)
    return array.__array_namespace__()
