"""What a data set is, and how the files of a published one are found and read."""

import gzip
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from ..errors import ArgumentError, DataError
from .images import Images


class Source(NamedTuple):
    """A data set by name: `read` takes some of split, root and path by position, and its options by keyword."""

    read: Callable[..., Images]
    splits: tuple[str, ...]
    classes: int | None
    image_shape: tuple[int, int, int] | None
    training_images: int | None
    origin: str
    found: Callable[[Path], bool] = lambda root: True


class Archive(NamedTuple):
    """The published files of a data set: where one gets them, and the folders under the root they may lie in."""

    title: str
    get: str
    folders: tuple[str, ...]

    def find(self, root: Path, wanted: Sequence[str]) -> list[Path]:
        """The wanted files, plain or .gz, from the first folder that holds them all."""
        found = {folder: [_file(root / folder / name) for name in wanted] for folder in self.folders}
        for files in found.values():
            there = [file for file in files if file]
            if len(there) == len(wanted):
                return there
        most = max(found, key=lambda folder: sum(file is not None for file in found[folder]))
        missing = [name for name, file in zip(wanted, found[most], strict=True) if file is None]
        raise DataError(
            f"{self.title} is not there: looked for {', '.join(wanted)} in {self._places(root)}"
            + (f"; {root / most} has no {', '.join(missing)}" if len(missing) < len(wanted) else "")
            + f". Get {self.get} and put the files there; root= or the variable ATTEMPER_DATA names another place"
        )

    def holds(self, root: Path, wanted: Sequence[str]) -> bool:
        return any(all(_file(root / folder / name) for name in wanted) for folder in self.folders)

    def _places(self, root: Path) -> str:
        return ", ".join(str((root / folder).absolute()) for folder in self.folders)


def data_root(root: str | os.PathLike[str] | None) -> Path:
    """`root`, or the environment variable ATTEMPER_DATA, or the folder data under the current one."""
    if not isinstance(root, str | os.PathLike | None):
        raise ArgumentError("root", root, "a path or None")
    return Path(root or os.environ.get("ATTEMPER_DATA") or "data").expanduser()


def read_bytes(path: Path) -> bytes:
    """The whole of a file, unpacked where it ends in .gz."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def check_labels(path: Path, labels: Tensor, classes: int) -> None:
    low, high = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
    if low < 0 or high >= classes:
        raise DataError(f"{path}: labels from 0 to {classes - 1} were expected, found some from {low} to {high}")


def _file(path: Path) -> Path | None:
    packed = path.with_name(f"{path.name}.gz")
    return path if path.is_file() else packed if packed.is_file() else None
