"""Spectra, and the number of directions that count in them."""

from typing import Literal

import torch
from torch import Tensor

from ..errors import ArgumentError, DataError
from .moments import Moments, float64

Of = Literal["covariance", "matrix"]


def spectrum(x: Tensor | Moments, of: Of = "covariance") -> Tensor:
    """Rows (n, width), or their Moments, -> float64 values, largest first.

    of="covariance": eigenvalues of the covariance of the rows. of="matrix": singular values of the uncentred matrix.

    >>> import torch
    >>> spectrum(torch.tensor([[3.0, 0.0], [-3.0, 0.0]])).round(decimals=3).tolist()
    [9.0, 0.0]
    """
    if of not in ("covariance", "matrix"):
        raise ArgumentError("of", of, "'covariance' or 'matrix'")
    if isinstance(x, Moments):
        square = x.covariance if of == "covariance" else x.second_moment * x.count
        values: Tensor = torch.linalg.eigvalsh(square).flip(0).clamp_min(0)
        return _above_rounding(values, x.mean) if of == "covariance" else values.sqrt()
    if not isinstance(x, Tensor) or x.ndim != 2 or not x.numel():
        raise ArgumentError("x", getattr(x, "shape", x), "a tensor (n, width) of one row at least, or Moments,")
    rows = float64(x)
    if not bool(rows.isfinite().all()):
        raise DataError("x: finite numbers are accepted, but NaN or an infinity came")
    values = torch.linalg.svdvals(rows if of == "matrix" else rows - rows.mean(0))
    if of == "matrix":
        return values
    values = torch.cat([values**2 / len(rows), values.new_zeros(max(0, x.shape[1] - len(values)))])
    return _above_rounding(values, rows)


def _above_rounding(values: Tensor, rows: Tensor) -> Tensor:
    """Sets to 0 what subtracting the mean from constant columns leaves."""
    rounding = 64 * torch.finfo(torch.float64).eps * rows.abs().max()
    return torch.where(values > values.numel() * rounding**2, values, 0)


def numerical_rank(x: Tensor | Moments, threshold: float = 1e-3, of: Of = "covariance") -> int:
    """How many values of `spectrum(x, of)` exceed `threshold` times the largest; 0 where all are 0.

    1e-3 of the covariance is 0.0316 of the centred matrix: the conventions differ, so say which one a number has.

    >>> import torch
    >>> numerical_rank(torch.outer(torch.arange(5.0), torch.ones(3)))
    1
    """
    if not isinstance(threshold, int | float) or not 0 < threshold < 1:
        raise ArgumentError("threshold", threshold, "a number within (0, 1)")
    values = spectrum(x, of)
    return int((values > threshold * values[0]).sum())
