"""Images in a folder per class, read when they are asked for."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..errors import ArgumentError, DataError
from .decode import check_shape, decode
from .images import Images
from .source import Source, file_size

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
CLUTTER = {"Thumbs.db", "desktop.ini"}
SPLIT_FOLDERS = {
    "train": ("train",),
    "test": ("test", "val", "validation"),
    "val": ("val", "validation"),
    "validation": ("validation", "val"),
}


class FolderImages(Images):
    """Files under `folder`, each below the folder of its class.

    The fingerprint knows a file by its path in `folder` and its size.
    """

    def __init__(
        self, name: str, split: str, folder: Path, files: Sequence[str], classes: tuple[str, ...],
        image_shape: tuple[int, int, int],
    ) -> None:  # fmt: skip
        number = {name: label for label, name in enumerate(classes)}
        labels = torch.tensor([number[file.split("/", 1)[0]] for file in files], dtype=torch.int64)
        super().__init__(name, split, labels, classes, image_shape)
        self.folder, self.files = folder, files

    def pixels(self, indices: Tensor) -> Tensor:
        paths = [str(self.folder / self.files[i]) for i in indices.tolist()]
        return decode(paths, paths, self.image_shape)

    def identity(self) -> bytes:
        digest = hashlib.sha256(repr((self.image_shape, self.classes)).encode())
        for file in self.files:
            digest.update(f"{file}\0{file_size(self.folder / file)}\n".encode())
        return digest.digest()


def read(
    split: str, root: Path, path: str, *, size: int = 64, channels: int = 3, classes: Sequence[str] | None = None
) -> FolderImages:
    """Images of `size` x `size` from `path`, as it stands or under the root.

    Where `path` holds folders named train, test, val or validation, and those hold the classes, `split` is one of
    them. Else `path` holds the classes, and split is all, or train or test: nine tenths and one tenth, by a hash of
    each file's name that more files do not change. `classes` fixes the numbering; not all of them need be there.
    """
    shape = check_shape(size, channels)
    folder = _existing(path, root)
    parts = [name for name in SPLIT_FOLDERS if _folders(folder / name)]
    if parts:
        chosen = next((name for name in SPLIT_FOLDERS.get(split, ()) if name in parts), None)
        if chosen is None:
            raise ArgumentError("split", split, f"one of {', '.join(parts)} (the folders of {folder})")
        here = folder / chosen
        there = sorted({name for part in parts for name in _folders(folder / part)})
    else:
        if split not in ("all", "train", "test"):
            raise ArgumentError("split", split, f"one of all, train, test ({folder} has no folder for each split)")
        here = folder
        there = _folders(folder)
    if not there:
        raise DataError(f"{here}: a folder for each class was expected, found none")

    names = _numbered(there, classes, folder)
    files = _files(here)
    if not parts and split != "all":
        files = [file for file in files if _held_out(file) == (split == "test")]
    return FolderImages(f"folder:{path}", split, here, files, names, shape)


def _existing(path: str, root: Path) -> Path:
    places = [Path(path).expanduser(), root / path]
    for place in places:
        if place.is_dir():
            return place
    looked = " and ".join(sorted({str(place.absolute()) for place in places}))
    raise DataError(f"folder:{path}: there is no such folder; looked for {looked}")


def _folders(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def _numbered(there: Sequence[str], classes: Sequence[str] | None, folder: Path) -> tuple[str, ...]:
    if classes is None:
        return tuple(there)
    if isinstance(classes, str) or not isinstance(classes, Sequence) or not len(set(classes)) == len(classes) > 0:
        raise ArgumentError("classes", classes, "a sequence of different folder names")
    if strange := sorted(set(there) - set(classes)):
        some = ", ".join(strange[:5]) + (f" and {len(strange) - 5} more" if len(strange) > 5 else "")
        raise DataError(f"{folder} holds folders that are not among the {len(classes)} given classes: {some}")
    return tuple(classes)


def _files(folder: Path) -> list[str]:
    """The paths in `folder` of the images in its class folders, sorted."""
    files: list[str] = []
    for name in _folders(folder):
        before = len(files)
        for place, _, inside in os.walk(folder / name):
            prefix = Path(place).relative_to(folder).as_posix()
            files += [f"{prefix}/{file}" for file in inside if not file.startswith(".") and file not in CLUTTER]
        if len(files) == before:
            raise DataError(f"{folder / name}: images of the class {name!r} were expected, found none")
    files.sort()
    if others := [file for file in files if os.path.splitext(file)[1].lower() not in SUFFIXES]:
        more = f" (and {len(others) - 1} more such files)" if len(others) > 1 else ""
        raise DataError(
            f"{folder / others[0]}{more} is no image: {', '.join(sorted(SUFFIXES))} are read, take others away"
        )
    return files


def _held_out(file: str) -> bool:
    return int.from_bytes(hashlib.sha256(file.encode()).digest()[:8]) % 10 == 0


FOLDER = Source(read, (), None, None, None, "a folder of yours with a folder per class")
