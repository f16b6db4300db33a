"""The sharpening at which the largest logit of a row begins to stand out."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..checks import positive
from .rows import RowStatistics


@dataclass(frozen=True)
class CriticalScale:
    """beta = max(1, multiple * Lambda), Lambda = max over j >= 2 of ln j / (s_1 - s_j), s the row's logits, the largest
    first and the sink among them: arXiv 2605.12697. Far below Lambda the two largest are not told apart, far above it
    the entropy collapses. Ties for the largest, where Lambda is infinite, and rows of fewer than two entries give 1.

    It sorts every row, which takes as much memory as the logits do.

    >>> rows = RowStatistics.from_logits(torch.tensor([[0.0, 0.5, 0.4]]))
    >>> CriticalScale(2.0).inverse_temperature(rows).round(decimals=3)
    tensor([13.8630])
    """

    multiple: float
    needs = ("sorted_logits",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "multiple", positive("multiple", self.multiple))

    def inverse_temperature(self, rows: RowStatistics) -> Tensor:
        logits = rows.sorted_logits()
        if logits.shape[-1] < 2:
            return torch.ones_like(logits.sum(-1))
        top, others = logits[..., :1], logits[..., 1:]
        seen = others > -torch.inf
        gaps = torch.where(seen, top - others, 1)
        ranks = torch.arange(2, logits.shape[-1] + 1, dtype=logits.dtype, device=logits.device)
        # divided by 1 where the result is thrown away: infinity would leave NaN in the gradient
        ratios = ranks.log() / torch.where(gaps > 0, gaps, 1)
        largest = self.multiple * torch.where(seen, ratios, 0).amax(-1)
        fits = (gaps > 0).all(-1) & largest.isfinite()
        return torch.where(fits, largest.clamp(min=1), 1.0)
