"""Arrays of numbers in MATLAB's files of level 5: all that SVHN needs, and none of it trusted."""

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..errors import DataError
from .source import read_bytes

HEADER = 128
LEVEL_5, HDF5 = b"\x00\x01IM", b"\x00\x02IM"
INT8, INT32, UINT32, MATRIX, COMPRESSED = 1, 5, 6, 14, 15
# how an element's numbers are stored, and what a matrix of a class holds: the first may be narrower
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}


def read_mat(path: Path) -> dict[str, np.ndarray]:
    """The arrays of real numbers in a file, by name; other contents are passed over."""
    data = memoryview(read_bytes(path))
    kind = bytes(data[HEADER - 4 : HEADER])
    if kind != LEVEL_5:
        found = "one of level 7.3 (HDF5)" if kind == HDF5 else f"{len(data)} bytes that are none"
        raise DataError(f"{path}: a .mat file of level 5 was expected, found {found}")
    arrays = {}
    try:
        for kind_of, content in _elements(data[HEADER:]):
            if kind_of == COMPRESSED:
                kind_of, content = next(_elements(memoryview(zlib.decompress(content))))
            if kind_of == MATRIX and (named := _matrix(content)):
                arrays[named[0]] = named[1]
    except (ValueError, zlib.error, StopIteration) as error:
        raise DataError(f"{path} is damaged: {error or 'an empty element'}") from error
    return arrays


def _elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Types and contents, one after the other."""
    at = 0
    while at < len(data):
        if len(data) - at < 8:
            raise ValueError(f"8 bytes were expected where an element begins, found {len(data) - at}")
        kind, size = struct.unpack_from("<II", data, at)
        begin, end = at + 8, at + 8 + size
        if kind >> 16:
            # a short element: its size shares the type's four bytes, its content takes the size's
            kind, size = kind & 0xFFFF, kind >> 16
            begin, end = at + 4, at + 4 + min(size, 4)
        if end - begin != size or end > len(data):
            raise ValueError(f"an element of {size} bytes was expected, found {min(end, len(data)) - begin}")
        yield kind, data[begin:end]
        at = end if kind == COMPRESSED else end + -end % 8


def _matrix(content: memoryview) -> tuple[str, np.ndarray] | None:
    """The name and the array; None where it is no array of real numbers."""
    elements = _elements(content)
    (_, flags), (_, sizes), (_, name) = (_next(elements, kind) for kind in (UINT32, INT32, INT8))
    dtype = CLASSES.get(flags[0]) if len(flags) == 8 else None
    if dtype is None:
        return None
    shape = tuple(np.frombuffer(sizes, "<i4").tolist())
    kind, numbers = _next(elements)
    if kind not in STORED:
        raise ValueError(f"numbers were expected in {bytes(name)!r}, found an element of type {kind}")
    expected = math.prod(shape) * int(STORED[kind][1])
    if min(shape, default=0) < 0 or len(numbers) != expected:
        raise ValueError(f"{expected} bytes were expected for {bytes(name)!r} of shape {shape}, found {len(numbers)}")
    array = np.frombuffer(numbers, f"<{STORED[kind]}").astype(dtype, copy=False)
    return bytes(name).decode("latin-1"), array.reshape(shape, order="F")


def _next(elements: Iterator[tuple[int, memoryview]], wanted: int | None = None) -> tuple[int, memoryview]:
    found, content = next(elements, (None, memoryview(b"")))
    if found is None or wanted not in (None, found):
        raise ValueError(
            f"an element of type {wanted or 'number'} was expected in a matrix, found {found or 'its end'}"
        )
    return found, content
