"""Policies: rows of logits -> an inverse temperature a row."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..checks import not_negative, positive, whole
from ..errors import ArgumentError
from .rows import RowStatistics
from .softmax import check_temperature

# of the rows seen, above which `Adaptive` warns
SHARE = 0.05


class Policy(Protocol):
    """`inverse_temperature` gives one beta a row; `needs` names the fields of RowStatistics that it reads.

    One that needs nothing, or `length` alone, reads no logits and costs no statistics.
    """

    @property
    def needs(self) -> tuple[str, ...]: ...
    def inverse_temperature(self, rows: RowStatistics) -> Tensor: ...


@dataclass(frozen=True)
class Constant:
    """beta = 1 / temperature.

    >>> Constant(2.0).inverse_temperature(RowStatistics.from_logits(torch.zeros(2, 5)))
    tensor([0.5000, 0.5000])
    """

    temperature: float
    needs = ()

    def __post_init__(self) -> None:
        _keep(self, temperature=positive("temperature", self.temperature))

    def inverse_temperature(self, rows: RowStatistics) -> Tensor:
        return _full(rows, 1 / self.temperature)


@dataclass(frozen=True)
class Adaptive:
    """beta = max(p(H), 1), H the row's entropy in nats and p a polynomial: arXiv 2410.01104, with its coefficients.

    coefficients: of p, the highest degree first. beta is 1 up to `min_entropy` and above `max_entropy`.

    The published p exceeds 1 for 0.85 < H < 5.94 alone: above 5.94 nats (a uniform row of 382 entries) the published
    method **switches itself off**, and long rows stay as they are. Where that holds for more than 5 % of the rows seen
    on a CPU so far, a warning says so, once. A `max_entropy` says that it is meant.

    >>> Adaptive().inverse_temperature(RowStatistics.from_logits(torch.zeros(1, 50))).round(decimals=3)
    tensor([2.3770])
    """

    coefficients: Sequence[float] = (-0.037, 0.481, -2.3, 4.917, -1.791)
    min_entropy: float = 0.5
    max_entropy: float | None = None
    needs = ("entropy",)

    def __post_init__(self) -> None:
        least = not_negative("min_entropy", self.min_entropy)
        most = None if self.max_entropy is None else positive("max_entropy", self.max_entropy)
        if most is not None and most <= least:
            raise ArgumentError("max_entropy", self.max_entropy, f"a number above min_entropy, {least:g},")
        coefficients = _numbers("coefficients", self.coefficients)
        _keep(self, coefficients=coefficients, min_entropy=least, max_entropy=most)
        # no field: neither compared nor shown nor saved
        _keep(self, _seen=_Seen(switch_off(coefficients) if most is None else None))

    def inverse_temperature(self, rows: RowStatistics) -> Tensor:
        entropy = rows.entropy
        self._seen.look_at(rows)  # type: ignore[attr-defined]
        polynomial = torch.zeros_like(entropy)
        for coefficient in self.coefficients:
            polynomial = polynomial * entropy + coefficient
        acts = entropy > self.min_entropy
        if self.max_entropy is not None:
            acts = acts & (entropy <= self.max_entropy)
        return torch.where(acts, polynomial.clamp(min=1), 1.0)


@dataclass(frozen=True)
class LogLength:
    """beta = max(1, ln n / ln train_length), n the row's length: Chiang & Cholak, arXiv 2202.12172; Su.

    >>> LogLength(16).inverse_temperature(RowStatistics.from_logits(torch.zeros(1, 256)))
    tensor([2.])
    """

    train_length: int
    needs = ("length",)

    def __post_init__(self) -> None:
        _keep(self, train_length=whole("train_length", self.train_length, least=2))

    def inverse_temperature(self, rows: RowStatistics) -> Tensor:
        return (_log_length(rows) / math.log(self.train_length)).clamp(min=1)


@dataclass(frozen=True, eq=False)
class SSMax:
    """beta = scale * ln n, n the row's length: arXiv 2501.19399.

    scale: a number, or a tensor (heads,) of them, which may be an `nn.Parameter` and learn. A row of one entry, where
    no temperature matters, gets 0.

    >>> SSMax(0.5).inverse_temperature(RowStatistics.from_logits(torch.zeros(1, 100))).round(decimals=3)
    tensor([2.3030])
    """

    scale: float | Tensor
    needs = ("length",)

    def __post_init__(self) -> None:
        if not isinstance(self.scale, Tensor):
            _keep(self, scale=positive("scale", self.scale))
        elif self.scale.ndim != 1 or not self.scale.is_floating_point():
            came = f"{self.scale.dtype} of shape {tuple(self.scale.shape)}"
            raise ArgumentError("scale", came, "a number, or a floating-point tensor (heads,),")
        else:
            check_temperature(self.scale, "scale")

    def inverse_temperature(self, rows: RowStatistics) -> Tensor:
        if not isinstance(self.scale, Tensor):
            return self.scale * _log_length(rows)
        if len(rows.shape) < 2:
            raise ArgumentError("scale", f"one for each of {len(self.scale)} heads", "for rows without heads a number")
        first, last = rows.first_head, rows.first_head + rows.shape[-2]
        if last > len(self.scale):
            raise ArgumentError("scale", f"{len(self.scale)} of them", f"one for each head, of which head {last - 1},")
        return self.scale[first:last].to(rows.device).unsqueeze(-1) * _log_length(rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SSMax):
            return NotImplemented
        if not isinstance(self.scale, Tensor) or not isinstance(other.scale, Tensor):
            return type(self.scale) is type(other.scale) and bool(self.scale == other.scale)
        return self.scale.dtype == other.scale.dtype and torch.equal(self.scale, other.scale)

    def __hash__(self) -> int:
        # a tensor's numbers may change
        return hash((SSMax, len(self.scale) if isinstance(self.scale, Tensor) else self.scale))


@dataclass(frozen=True)
class Yarn:
    """beta = (0.1 ln factor + 1)^2, `factor` the one by which the rotation is stretched: arXiv 2309.00071.

    For models whose rotation carries no such factor yet: transformers multiplies it into cosine and sine.

    >>> Yarn(4).inverse_temperature(RowStatistics.from_logits(torch.zeros(1, 5))).round(decimals=4)
    tensor([1.2965])
    """

    factor: float
    needs = ()

    def __post_init__(self) -> None:
        if positive("factor", self.factor) < 1:
            raise ArgumentError("factor", self.factor, "a finite number from 1")
        _keep(self, factor=float(self.factor))

    def inverse_temperature(self, rows: RowStatistics) -> Tensor:
        return _full(rows, (0.1 * math.log(self.factor) + 1) ** 2)


@dataclass(frozen=True)
class Llama4:
    """beta = 1 + attn_scale * ln(1 + floor((position + 1) / floor_scale)), position = length - 1: Llama 4's model code.

    Llama 4 itself has floor_scale 8192 and attn_scale 0.1.

    >>> Llama4(8, 0.1).inverse_temperature(RowStatistics.from_logits(torch.zeros(1, 16))).round(decimals=4)
    tensor([1.1099])
    """

    floor_scale: float
    attn_scale: float
    needs = ("length",)

    def __post_init__(self) -> None:
        floor_scale = positive("floor_scale", self.floor_scale)
        _keep(self, floor_scale=floor_scale, attn_scale=not_negative("attn_scale", self.attn_scale))

    def inverse_temperature(self, rows: RowStatistics) -> Tensor:
        # whole numbers divide exactly
        by = int(self.floor_scale) if self.floor_scale.is_integer() else self.floor_scale
        floors = torch.div(rows.length, by, rounding_mode="floor").to(rows.dtype)
        return 1 + self.attn_scale * torch.log1p(floors)


def switch_off(coefficients: Sequence[float]) -> float | None:
    """The entropy from which on a polynomial, highest degree first, stays below 1; None where there is none.

    >>> round(switch_off((-0.037, 0.481, -2.3, 4.917, -1.791)), 4)
    5.9445
    """
    above_one = np.array([*coefficients[:-1], coefficients[-1] - 1])
    roots = np.roots(above_one)
    crossings = sorted(float(root.real) for root in roots if abs(root.imag) < 1e-6 * (1 + abs(root)) and root.real > 0)
    if not crossings or np.polyval(above_one, crossings[-1] + 1) > 0:
        return None
    for upper, lower in pairwise([0.0, *crossings][::-1]):
        if np.polyval(above_one, (lower + upper) / 2) > 0:
            return upper
    return None


def read(value: Tensor, wait: bool = False) -> float | None:
    """The number, or None where it is not known yet: while compiling, under vmap; on a device, unless it may `wait`."""
    if torch.compiler.is_compiling() or value.is_meta or (value.is_cuda and torch.cuda.is_current_stream_capturing()):
        return None
    if value.device.type != "cpu" and not wait:
        return None
    try:
        return value.item()
    except RuntimeError:
        return None


class _Seen:
    """How many rows lay above `limit`; a copy counts afresh."""

    def __init__(self, limit: float | None) -> None:
        self.limit, self.rows, self.above, self.active = limit, 0.0, 0.0, limit is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.limit,)

    def look_at(self, rows: RowStatistics) -> None:
        if not self.active or self.limit is None or torch.compiler.is_compiling() or rows.entropy.device.type != "cpu":
            return
        entropy = rows.entropy.detach()
        above, count = read((entropy > self.limit).sum()), read((rows.logsumexp > -torch.inf).sum())
        if above is None or count is None:
            return
        self.rows, self.above = self.rows + count, self.above + above
        if self.above > SHARE * self.rows:
            self.active = False
            warnings.warn(
                f"Adaptive: {self.above / self.rows:.0%} of the rows so far have an entropy above {self.limit:.2f}"
                " nats, where the polynomial is below 1 and leaves them as they are. Refit the coefficients on rows of"
                " this length, take another policy (EntropyTarget, LogLength), or set max_entropy where it is meant",
                stacklevel=3,
            )


def _keep(policy: object, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(policy, name, value)


def _numbers(name: str, values: object) -> tuple[float, ...]:
    wanted = "finite numbers, at least one,"
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise ArgumentError(name, values, wanted)
    try:
        # any sign: a number and its negative pass as often as one of them does
        return tuple(math.copysign(not_negative(name, abs(value)), value) for value in values)
    except (TypeError, ArgumentError):
        raise ArgumentError(name, values, wanted) from None


def _full(rows: RowStatistics, beta: float) -> Tensor:
    return torch.full(rows.shape, beta, dtype=rows.dtype, device=rows.device)


def _log_length(rows: RowStatistics) -> Tensor:
    """0 for a row that sees nothing."""
    return rows.length.clamp(min=1).to(rows.dtype).log()
