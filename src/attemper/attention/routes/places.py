"""How a case is cut into blocks."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..cases import Case

# logits a block holds: for each thread what a core's cache holds, on a GPU what fills it
FOR_A_THREAD, FOR_A_GPU = 2**19, 2**25
# of fewer rows a matrix product is slow
ROWS = 128


@dataclass(frozen=True)
class Place:
    """A block: which sequences, key heads (each with a group of heads), queries and keys."""

    batch: slice
    key_heads: slice
    queries: slice
    keys: slice
    group: int

    @property
    def heads(self) -> slice:
        return slice(self.key_heads.start * self.group, self.key_heads.stop * self.group)

    @property
    def size(self) -> int:
        """The number of its logits."""
        return math.prod(side.stop - side.start for side in (*self.rows, self.keys))

    @property
    def rows(self) -> tuple[slice, slice, slice]:
        return self.batch, self.heads, self.queries


def places(case: Case) -> Iterator[Place]:
    """The blocks that cover a case, those of the same keys one after the other; keys that none sees are left out."""
    sequences, key_heads = case.key.shape[:2]
    group = case.heads // max(key_heads, 1)
    queries, keys = case.queries, case.keys
    # what is dropped depends on the blocks, and the number of threads may change before the backward pass
    threads = 2 if case.dropout else torch.get_num_threads()
    room = FOR_A_GPU if case.query.is_cuda else FOR_A_THREAD * threads
    few = min(queries, -(-ROWS // max(group, 1)))
    heads = _between(1, room // max(few * group * keys, 1), key_heads)
    whole = heads == key_heads and queries * group * heads * keys <= room
    batch = _between(1, room // max(queries * group * heads * keys, 1), sequences) if whole else 1
    rows = _between(1, room // max(batch * heads * group * keys, 1), queries)
    for sequence in _pieces(sequences, batch):
        for head in _pieces(key_heads, heads):
            for query in _pieces(queries, rows):
                yield Place(sequence, head, query, _seen(case, sequence, query), group)


def _seen(case: Case, batch: slice, queries: slice) -> slice:
    """The keys from the first to the last that any of the queries may see."""
    keys = case.keys
    last = min(keys, queries.stop) if case.is_causal else keys
    if case.mask is None or case.query.is_cuda:
        return slice(0, max(last, min(keys, 1)))
    mask = case.mask
    rows = mask[batch if mask.shape[0] > 1 else slice(None), :, queries if mask.shape[2] > 1 else slice(None)]
    seen: Tensor = rows.flatten(0, 2).any(0).expand(keys)[:last].nonzero()
    return slice(int(seen[0]), int(seen[-1]) + 1) if len(seen) else slice(0, min(keys, 1))


def _pieces(total: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)] or [slice(0, 0)]


def _between(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))
