"""Masks as models write them."""

import torch

# half of what is written: a bias may have been added
BOUNDS = {
    dtype: max(-5e8, torch.finfo(dtype).min / 2)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
}


def not_seen(dtype: torch.dtype) -> float:
    """Numbers of a mask up to this one say "not seen", as -inf does: models write -1e9 or the least of the type.

    >>> not_seen(torch.float32), not_seen(torch.float16)
    (-500000000.0, -32752.0)
    """
    return BOUNDS[dtype]
