"""Whether an argument can be used."""

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import TypeGuard

from .errors import ArgumentError

MOST = 2**63 - 1


def whole(name: str, value: object, least: int = 1, most: int = MOST) -> int:
    """`value` as an int, refused where it is no whole number from `least` to `most`."""
    if not _is_whole(value) or not least <= value <= most:
        limit = "" if most == MOST and not (_is_whole(value) and value > most) else f" to {most}"
        raise ArgumentError(name, value, f"a whole number from {least}{limit}")
    return int(value)


def positive(name: str, value: object) -> float:
    """`value` as a float, refused where it is no finite number above 0."""
    number = _number(value)
    if not 0 < number < math.inf:
        raise ArgumentError(name, value, "a finite number above 0")
    return number


def not_negative(name: str, value: object) -> float:
    """`value` as a float, refused where it is no finite number from 0."""
    number = _number(value)
    if not 0 <= number < math.inf:
        raise ArgumentError(name, value, "a finite number from 0")
    return number


def share(name: str, value: object) -> float:
    """`value` as a float, refused where it is no number within [0, 1]."""
    number = _number(value)
    if not 0 <= number <= 1:
        raise ArgumentError(name, value, "a number within [0, 1]")
    return number


def shape(value: object) -> tuple[int, int, int]:
    """`image_shape` as (channels, height, width)."""
    sides = tuple(value) if isinstance(value, tuple | list) else ()
    if len(sides) != 3 or not all(_is_whole(side) and side >= 1 for side in sides):
        raise ArgumentError("image_shape", value, "(channels, height, width), whole numbers from 1,")
    return int(sides[0]), int(sides[1]), int(sides[2])


def choices(values: Iterable[object]) -> str:
    """('a', 'b', 'c') -> 'a, b or c'."""
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else last


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _number(value: object) -> float:
    """NaN for all that is no real number."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf
