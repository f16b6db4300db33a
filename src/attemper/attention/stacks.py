"""The policies and the watchers that are in force in this thread, the innermost last."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from ..knob.policies import Policy
from ..knob.rows import RowStatistics


class Watcher(Protocol):
    """Takes the rows (batch, heads, queries) of a call, and the module it came from where that is known."""

    def take(self, rows: RowStatistics, module: nn.Module | None) -> None: ...


@dataclass(frozen=True, eq=False)
class InForce:
    """A policy (None is plain softmax), and what finds the number of the attention module that is running."""

    policy: Policy | None
    layer: Callable[[], int | None] | None = None


class Stacks:
    def __init__(self) -> None:
        self.policies: list[InForce] = []
        self.watchers: list[Watcher] = []


class _Here(threading.local):
    def __init__(self) -> None:
        self.stacks = Stacks()


_here = _Here()


def here() -> Stacks:
    """Those of this thread."""
    return _here.stacks


@contextmanager
def standing_in(stacks: Stacks) -> Iterator[None]:
    """This thread works for the one whose stacks these are."""
    before, _here.stacks = _here.stacks, stacks
    try:
        yield
    finally:
        _here.stacks = before


@contextmanager
def in_force(entry: InForce) -> Iterator[None]:
    policies = here().policies
    policies.append(entry)
    try:
        yield
    finally:
        policies.remove(entry)


@contextmanager
def told(watcher: Watcher) -> Iterator[None]:
    watchers = here().watchers
    watchers.append(watcher)
    try:
        yield
    finally:
        watchers.remove(watcher)


def innermost() -> InForce | None:
    policies = here().policies
    return policies[-1] if policies else None


def watched() -> bool:
    """Whether anyone is to be told of calls."""
    return bool(here().watchers)


def tell(rows: RowStatistics, module: nn.Module | None = None) -> None:
    """Every watcher takes the rows as a call used them."""
    with torch.no_grad():
        for watcher in here().watchers:
            watcher.take(rows, module)
