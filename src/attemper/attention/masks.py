"""Masks as models write them."""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F


def seen_only(mask: Tensor | None) -> Tensor | None:
    """The mask with -inf for each number that stands for 'not seen': those up to max(-1e9, half the type's least).

    A policy that counts keys then counts the ones that a row really sees. A row whose numbers all say 'not seen' gives
    0 afterwards, where torch averages all the values: the models that write such rows (padding) never read them.
    A bool mask and None stay as they are, and so does the shape, which an expanded mask fills without memory.
    """
    if mask is None or not mask.is_floating_point():
        return mask
    # one pass, and one copy of what was expanded
    own = mask[tuple(slice(0, 1 if stride == 0 else None) for stride in mask.stride())]
    return F.threshold(own, _bound(mask.dtype), -torch.inf).expand(mask.shape)


@cache
def _bound(dtype: torch.dtype) -> float:
    """As the type rounds it: a mask in bfloat16 that was filled with -1e9 holds -998244352."""
    return torch.tensor(max(-1e9, torch.finfo(dtype).min / 2)).to(dtype).item()
