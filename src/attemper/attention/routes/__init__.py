"""The ways to compute attention: the first that gives what a case asks for is taken."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ...knob.policies import Policy
from ...knob.rows import Source
from ..cases import Case
from . import blocks, compiled, plain


class GivesOutput(Protocol):
    """`tempered` gives the output (batch, heads, queries, d_v) under a policy and, where `measure` asks, also entropy,
    logsumexp, mean, maximum and minimum of each row under it."""

    NAME: str

    def gives_output(self, case: Case, policy: Policy | None, needs: frozenset[str], measure: bool) -> bool: ...
    def tempered(
        self, case: Case, policy: Policy | None, detach: bool, layer: int | None, measure: bool
    ) -> tuple[Tensor, ...]: ...


class GivesRows(Protocol):
    """`rows` gives the statistics of a case."""

    NAME: str

    def gives_rows(self, case: Case) -> bool: ...
    def rows(self, case: Case) -> Source: ...


FOR_OUTPUT: Sequence[GivesOutput] = (plain, compiled, blocks)
FOR_ROWS: Sequence[GivesRows] = (compiled, blocks)


def for_output(case: Case, policy: Policy | None, needs: frozenset[str], measure: bool) -> GivesOutput:
    return next(route for route in FOR_OUTPUT if route.gives_output(case, policy, needs, measure))


def for_rows(case: Case) -> GivesRows:
    return next(route for route in FOR_ROWS if route.gives_rows(case))
