"""Numbers that change with a training's progress: functions from [0, 1] to a temperature, or to a learning rate.

>>> from attemper import schedules
>>> cooling = schedules.linear(100.0, 1.0)
>>> cooling(0.0), cooling(0.5), cooling(1.0)
(100.0, 50.5, 1.0)
"""

import bisect
import math
from collections.abc import Callable, Sequence

from ..checks import not_negative, share
from ..errors import ArgumentError

Schedule = Callable[[float], float]


def constant(value: float) -> Schedule:
    not_negative("value", value)
    return lambda progress: value


def linear(start: float, end: float) -> Schedule:
    """From start to end in equal steps."""
    start, end = not_negative("start", start), not_negative("end", end)
    return lambda progress: start * (1 - share("progress", progress)) + end * progress


def cosine(start: float, end: float) -> Schedule:
    """From start to end along half a cosine: flat at both ends."""
    start, end = not_negative("start", start), not_negative("end", end)

    def value(progress: float) -> float:
        left = (1 + math.cos(math.pi * share("progress", progress))) / 2
        return start * left + end * (1 - left)

    return value


def step(values: Sequence[float], milestones: Sequence[float]) -> Schedule:
    """values[k] once k of the milestones, which rise within (0, 1), have been reached.

    >>> step([1.0, 0.1, 0.01], [0.5, 0.75])(0.5)
    0.1
    """
    values = [not_negative(f"values[{i}]", value) for i, value in enumerate(values)]
    if len(values) != len(milestones) + 1:
        raise ArgumentError("values", list(values), f"one more than the {len(milestones)} milestones")
    if list(milestones) != sorted(set(milestones)) or not all(0 < m < 1 for m in milestones):
        raise ArgumentError("milestones", list(milestones), "numbers that rise within (0, 1)")
    return lambda progress: values[bisect.bisect_right(milestones, share("progress", progress))]


def one_cycle(peak: float, warmup: float = 0.3, start: float = 0.04, end: float = 0.0) -> Schedule:
    """Up to `peak` along half a cosine for the share `warmup`, then down; `start` and `end` are shares of the peak."""
    if not 0 < share("warmup", warmup) < 1:
        raise ArgumentError("warmup", warmup, "a number within (0, 1)")
    peak = not_negative("peak", peak)
    up = cosine(share("start", start) * peak, peak)
    down = cosine(peak, share("end", end) * peak)

    def value(progress: float) -> float:
        rising = share("progress", progress) < warmup
        return up(progress / warmup) if rising else down((progress - warmup) / (1 - warmup))

    return value
