"""The statistics of a case's rows, a pass over its blocks for whatever is asked of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ...knob.rows import RowMoments
from ..cases import Case


class Pass(Protocol):
    """Does the named work on every block; what comes has the shape (batch, heads, queries, ...)."""

    def __call__(self, work: str, case: Case, beta: Tensor | None = None) -> Sequence[Tensor]: ...


@dataclass(frozen=True)
class CaseRows:
    case: Case
    over_blocks: Pass
    route: str

    @property
    def shape(self) -> torch.Size:
        return self.case.query.shape[:3]

    @property
    def dtype(self) -> torch.dtype:
        return self.case.computed_in

    @property
    def device(self) -> torch.device:
        return self.case.query.device

    @property
    def length(self) -> Tensor:
        return self.case.lengths()

    def moments(self, beta: Tensor | None, variance: bool) -> RowMoments:
        work = "moments and variance" if variance else "moments"
        return RowMoments(*self.over_blocks(work, self.case, beta))

    def extremes(self) -> tuple[Tensor, Tensor]:
        largest, smallest = self.over_blocks("extremes", self.case)
        return largest, smallest

    def sorted_logits(self) -> Tensor:
        return self.over_blocks("sort", self.case)[0]
