"""The blocks as operators that a compiler takes as they are: their loop is not unrolled into its graph."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...knob.needs import beta_of
from ...knob.policies import Policy
from ...knob.rows import RowStatistics
from ..cases import Case
from . import blocks
from .statistics import CaseRows

NAME = "operators"
OUTPUTS = {"moments": 3, "moments and variance": 4, "extremes": 2}


def gives_output(case: Case, policy: Policy | None, needs: frozenset[str], measure: bool) -> bool:
    return torch.compiler.is_compiling()


def gives_rows(case: Case) -> bool:
    return torch.compiler.is_compiling()


def rows(case: Case) -> CaseRows:
    return CaseRows(case, call, NAME)


def tempered(case: Case, policy: Policy | None, detach: bool, layer: int | None, measure: bool) -> tuple[Tensor, ...]:
    beta, statistics = None, RowStatistics(rows(case), layer=layer)
    if policy is not None:
        beta = beta_of(policy, statistics)
        beta = beta.detach() if detach else beta
        statistics = statistics.at(beta.detach())
    (output,) = call("attend", case, beta)
    if not measure:
        return (output,)
    used = statistics
    return output, used.entropy, used.logsumexp, used.mean_logit, used.max_logit, used.min_logit


def call(work: str, case: Case, beta: Tensor | None = None) -> list[Tensor]:
    seed = torch.randint(2**62, ()) if case.dropout and work == "attend" else None
    settings = case.is_causal, case.scale, case.softcap, case.dropout, case.precision
    found: list[Tensor] = torch.ops.attemper.blocks(
        work, case.query, case.key, case.value, case.bias, case.sinks, beta, case.mask, seed, *settings
    )
    return found


@torch.library.custom_op("attemper::blocks", mutates_args=())
def operator(
    work: str,
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    beta: Tensor | None,
    mask: Tensor | None,
    seed: Tensor | None,
    is_causal: bool,
    scale: float,
    softcap: float | None,
    dropout: float,
    precision: str,
) -> list[Tensor]:
    case = Case(query, key, value, mask, bias, sinks, is_causal, scale, softcap, dropout, precision, query.shape[:3])
    return list(blocks.forward(case, blocks.work_of(work, case), _number(seed), (*case.tensors, beta)))


@operator.register_fake
def _(
    work: str, query: Tensor, key: Tensor, value: Tensor | None, bias: Any, sinks: Any, beta: Any, mask: Any, *rest: Any
) -> list[Tensor]:
    shape = query.shape[:3]
    if work == "attend":
        assert value is not None
        sequences, heads, queries = shape
        return [query.new_empty(sequences, queries, heads, value.shape[3]).transpose(1, 2)]
    wide = torch.promote_types(query.dtype, torch.float32)
    if work == "sort":
        return [query.new_empty(*shape, key.shape[2] + (sinks is not None), dtype=wide)]
    return [query.new_empty(shape, dtype=wide) for _ in range(OUTPUTS[work])]


@torch.library.custom_op("attemper::blocks_backward", mutates_args=())
def backward_operator(
    work: str,
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    beta: Tensor | None,
    mask: Tensor | None,
    seed: Tensor | None,
    is_causal: bool,
    scale: float,
    softcap: float | None,
    dropout: float,
    precision: str,
    wanted: list[bool],
    gradients: list[Tensor],
) -> list[Tensor]:
    case = Case(query, key, value, mask, bias, sinks, is_causal, scale, softcap, dropout, precision, query.shape[:3])
    tensors = (*case.tensors, beta)
    with _autograd_within():
        found = blocks.backward(case, blocks.work_of(work, case), _number(seed), tensors, wanted, gradients)
    return [
        torch.zeros_like(tensor) if gradient is None else gradient
        for tensor, gradient, want in zip(tensors, found, wanted, strict=True)
        if want and tensor is not None
    ]


@backward_operator.register_fake
def _(work: str, *arguments: Any) -> list[Tensor]:
    tensors, wanted = arguments[:6], arguments[-2]
    return [torch.empty_like(t) for t, want in zip(tensors, wanted, strict=True) if want]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.work, ctx.settings = inputs[0], inputs[9:]
    ctx.save_for_backward(*inputs[1:9])


def _backward(ctx: Any, gradients: list[Tensor | None]) -> tuple[Any, ...]:
    wanted = [bool(want) for want in ctx.needs_input_grad[1:7]]
    saved = ctx.saved_tensors
    zero = saved[0].new_zeros(())
    filled = [zero if gradient is None else gradient for gradient in gradients]
    found = iter(
        torch.ops.attemper.blocks_backward(ctx.work, *saved, *ctx.settings, wanted, filled) if any(wanted) else ()
    )
    return None, *(next(found) if want else None for want in wanted), *(None,) * 7


operator.register_autograd(_backward, setup_context=_keep)


@contextlib.contextmanager
def _autograd_within() -> Iterator[None]:
    """Torch calls an operator with autograd shut off; the backward pass of a block is autograd's."""
    key = torch._C.DispatchKey.AutogradFunctionality
    was = torch._C._dispatch_tls_is_dispatch_key_excluded(key)
    torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, was)


def _number(seed: Tensor | None) -> int:
    return 0 if seed is None else int(seed)
