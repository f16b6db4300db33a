"""Masks as models write them."""

from functools import cache

import torch


@cache
def not_seen(dtype: torch.dtype) -> float:
    """Numbers of a mask up to this one say "not seen", as -inf does: -1e9, or half the least where a type has less.

    >>> not_seen(torch.float32), not_seen(torch.float16)
    (-1000000000.0, -32752.0)
    """
    # as the type rounds it: a mask in bfloat16 that was filled with -1e9 holds -998244352
    return torch.tensor(max(-1e9, torch.finfo(dtype).min / 2)).to(dtype).item()
