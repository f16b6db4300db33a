"""The least sharpening that brings an entropy down to a target."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..checks import positive, whole
from ..errors import ArgumentError
from .policies import read
from .rows import RowStatistics

TOLERANCE = 1e-3
# float64 is asked for by who wants to compare: there the search goes on for as long as it may
TIGHT = 1e-9
TINY = 1e-30


@dataclass(frozen=True)
class EntropyTarget:
    """The least beta >= 1 with entropy <= nats, to 1e-3 nats where it is solved: rows below get exactly 1, rows that
    cannot reach it `max_beta`. Ours; a natural target is the entropy that the same head has at training lengths.

    Every step of the search is a pass over the logits, at most `max_passes` of them with the one at beta = 1; about
    four are used. A row that is not solved by then gets a beta that is too large, not too small. A gradient (the
    implicit one: the entropy stays where it is) takes a pass more; beta has none where it is 1 or `max_beta`.

    >>> rows = RowStatistics.from_logits(torch.arange(8.0).unsqueeze(0))
    >>> beta = EntropyTarget(0.5).inverse_temperature(rows)
    >>> rows.at(beta).entropy.round(decimals=2)
    tensor([0.5000])
    """

    nats: float
    max_beta: float = 64
    max_passes: int = 8
    needs = ("variance", "entropy", "mean_logit", "at")

    def __post_init__(self) -> None:
        if positive("max_beta", self.max_beta) < 1:
            raise ArgumentError("max_beta", self.max_beta, "a finite number from 1")
        object.__setattr__(self, "nats", positive("nats", self.nats))
        object.__setattr__(self, "max_beta", float(self.max_beta))
        object.__setattr__(self, "max_passes", whole("max_passes", self.max_passes))

    def inverse_temperature(self, rows: RowStatistics) -> Tensor:
        # the variance first: then one pass gives all three
        variance, entropy, mean = rows.variance, rows.entropy, rows.mean_logit
        with torch.no_grad():
            start = Point(torch.zeros_like(entropy), entropy.detach(), variance.detach(), mean.detach())
            end = torch.full_like(entropy, math.log(self.max_beta))
            log_beta = least(rows, start, end, self.nats, self.max_passes)
            beta = torch.where(log_beta >= end, self.max_beta, log_beta.exp())
        if not entropy.requires_grad:
            return beta
        there = rows.at(beta)
        variance, entropy = there.variance.detach(), there.entropy
        solved = (beta > 1) & (beta < self.max_beta) & ((entropy.detach() - self.nats).abs() <= 2 * TOLERANCE)
        # dH / dbeta = -variance / beta
        slope = torch.where(solved & (variance > 1e-6), beta / variance, 0.0)
        return beta + slope * (entropy - entropy.detach())


class Point(NamedTuple):
    """Rows at an inverse temperature: its logarithm, their entropy, the variance of beta * logits, the mean logit."""

    log_beta: Tensor
    entropy: Tensor
    variance: Tensor
    mean: Tensor


def least(rows: RowStatistics, start: Point, end: Tensor, nats: float, passes: int) -> Tensor:
    """ln of the least beta from 1 to e^end whose entropy is at most nats."""
    goal = TIGHT if end.dtype == torch.float64 else TOLERANCE
    low, high = start, Point(end, *(torch.full_like(end, math.nan) for _ in range(3)))
    before, here = None, start
    gap = start.entropy - nats
    done = ~(gap > 0)
    near = done | (gap <= TOLERANCE)
    done = done | (gap <= goal)
    answer = torch.where(gap > 0, torch.where(near, _polished(start, gap, end), end), 0)
    for _ in range(passes - 1):
        if read(done.all(), wait=True):
            break
        log_beta = torch.where(done, answer, _next(before, here, low, high, nats))
        before, here = here, _measured(rows, log_beta)
        gap = here.entropy - nats
        close = gap.abs() <= TOLERANCE
        answer = torch.where(~done & close, _polished(here, gap, end), answer)
        near = near | close
        answer = torch.where(~done & ~near & (gap <= 0), log_beta, answer)
        low, high = _where(~done & (gap > 0), here, low), _where(~done & (gap <= 0), here, high)
        done = done | (gap.abs() <= goal) | ((gap > 0) & (log_beta >= end))
    return answer


def _measured(rows: RowStatistics, log_beta: Tensor) -> Point:
    beta = log_beta.exp()
    there = rows.at(beta)
    variance = there.variance
    return Point(log_beta, there.entropy, variance, there.mean_logit / beta)


def _polished(point: Point, gap: Tensor, end: Tensor) -> Tensor:
    """A last step of Newton, so short that it needs no look at where it leads: dH / dln(beta) = -variance."""
    step = gap / point.variance
    return torch.where(step.abs() <= 0.02, point.log_beta + step, point.log_beta).clamp(min=0).minimum(end)


def _next(before: Point | None, here: Point, low: Point, high: Point, nats: float) -> Tensor:
    """Where to look next: a step as if -dH / dln(beta) were a power of beta.

    At first that is the square: so it is for normal logits, whose entropy falls by beta^2 * variance / 2. Later steps
    take ln H for H, which falls evenly in beta once few entries are left, and the power from the last two looks.
    """
    if before is None:
        ahead = here.log_beta + torch.log1p(2 * (here.entropy - nats) / here.variance) / 2
    else:
        fall = _log(here.variance) - _log(here.entropy)
        fall_before = _log(before.variance) - _log(before.entropy)
        power = ((fall - fall_before) / (here.log_beta - before.log_beta)).clamp(1e-3, 4)
        steps = (_log(here.entropy) - math.log(nats)) / fall.exp()
        ahead = here.log_beta + torch.log1p(power * steps) / power
    bracketed = high.entropy.isfinite()
    inside = (ahead > low.log_beta) & (ahead < high.log_beta)
    return torch.where(inside, ahead, torch.where(bracketed, _crossing(low, high), high.log_beta))


def _crossing(low: Point, high: Point) -> Tensor:
    """Where the tangents of the logsumexp, which is convex in beta, meet: there an outlier takes over from the many."""
    crossing = _log((low.entropy - high.entropy) / (high.mean - low.mean))
    inside = (crossing > low.log_beta) & (crossing < high.log_beta)
    return torch.where(inside, crossing, (low.log_beta + high.log_beta) / 2)


def _log(values: Tensor) -> Tensor:
    return values.clamp(min=TINY).log()


def _where(mask: Tensor, one: Point, other: Point) -> Point:
    return Point(*(torch.where(mask, a, b) for a, b in zip(one, other, strict=True)))
