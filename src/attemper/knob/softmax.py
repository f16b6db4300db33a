"""Softmax at a temperature, and the entropy of what it gives."""

import torch
from torch import Tensor

from ..checks import positive
from ..errors import ArgumentError

HALVES = (torch.float16, torch.bfloat16)


def softmax(logits: Tensor, temperature: float | Tensor = 1.0, dim: int = -1) -> Tensor:
    """exp(logits / temperature) over `dim`, normalised; same shape and type as `logits`.

    `temperature` is a number or a tensor that broadcasts to `logits`. Entries of -inf get exactly 0; a row of
    nothing but -inf gives zeros. NaN and +inf give NaN.

    >>> import torch
    >>> softmax(torch.tensor([0.0, 0.0, -torch.inf]), temperature=10.0)
    tensor([0.5000, 0.5000, 0.0000])
    """
    powers = _exponents(logits, temperature, dim).exp()
    total = powers.sum(dim, keepdim=True)
    return (powers / torch.where(total == 0, 1, total)).to(logits.dtype)


def entropy(logits: Tensor, temperature: float | Tensor = 1.0, dim: int = -1) -> Tensor:
    """Entropy in nats of softmax(logits / temperature) over `dim`, which the result lacks.

    Exact where entries are -inf; a row of nothing but -inf gives 0. Half-precision logits give float32.

    >>> import torch
    >>> entropy(torch.zeros(2, 4)).exp()
    tensor([4., 4.])
    """
    exponents = _exponents(logits, temperature, dim)
    powers = exponents.exp()
    total = powers.sum(dim)
    total = torch.where(total == 0, 1, total)
    # 0 * -inf is NaN, in the gradient too: such entries leave before the product
    mean = (powers * torch.where(powers == 0, 0, exponents)).sum(dim) / total
    return total.log() - mean


def check_logits(logits: Tensor) -> None:
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise ArgumentError("logits", getattr(logits, "dtype", logits), "a tensor of floating-point numbers")


def check_temperature(temperature: object, name: str = "temperature") -> None:
    """Refuses what is not a finite number above 0 or a tensor of such."""
    if not isinstance(temperature, Tensor):
        positive(name, temperature)
    elif not torch.compiler.is_compiling() and not bool(((temperature > 0) & temperature.isfinite()).all()):
        raise ArgumentError(name, temperature, "a finite number above 0, or a tensor of such,")


def widened(logits: Tensor) -> Tensor:
    """In float32 where they are in half precision."""
    return logits.float() if logits.dtype in HALVES else logits


def shifted(logits: Tensor, temperature: float | Tensor, dim: int) -> Tensor:
    """(logits - their largest) / temperature, in float32 at least: no temperature makes it overflow upwards."""
    wide = widened(logits)
    largest = wide.detach().amax(dim, keepdim=True)
    below = wide - torch.where(largest == -torch.inf, 0, largest)
    if not isinstance(temperature, Tensor):
        return below / temperature
    # a temperature's gradient would be -inf * 0 there
    masked = below == -torch.inf
    return (below.masked_fill(masked, 0) / temperature).masked_fill(masked, -torch.inf)


def _exponents(logits: Tensor, temperature: float | Tensor, dim: int) -> Tensor:
    check_logits(logits)
    check_temperature(temperature)
    if not isinstance(dim, int) or not -logits.ndim <= dim < logits.ndim:
        raise ArgumentError("dim", dim, f"a dimension of logits, which has {logits.ndim},")
    if logits.shape[dim] == 0:
        raise ArgumentError("logits", tuple(logits.shape), "at least one entry a row")
    return shifted(logits, temperature, dim)
