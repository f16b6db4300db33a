"""Image data sets of the Hugging Face hub, or of its library's files on this machine."""

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, DataError, MissingExtraError
from .decode import check_shape, decode
from .images import Images
from .source import Source, file_size

STANDS_FOR = {"test": ("test", "validation", "valid", "val")}


class HubImages(Images):
    """Rows of a `datasets.Dataset`, decoded when they are asked for.

    The fingerprint knows an image by its row and the size of its file.
    """

    def __init__(
        self, name: str, split: str, rows: Any, column: str, labels: Tensor, classes: tuple[str, ...],
        image_shape: tuple[int, int, int],
    ) -> None:  # fmt: skip
        super().__init__(name, split, labels, classes, image_shape)
        self.rows, self.column = rows, column

    def pixels(self, indices: Tensor) -> Tensor:
        numbers = indices.tolist()
        names = [f"{self.name}, split {self.split!r}, row {i}" for i in numbers]
        files = self.rows[numbers][self.column] if numbers else []
        sources = []
        for name, file in zip(names, files, strict=True):
            if file is None:
                raise DataError(f"{name}: an image was expected in the column {self.column!r}, found nothing")
            sources.append(file["bytes"] or file["path"])
        return decode(sources, names, self.image_shape)

    def identity(self) -> bytes:
        import pyarrow.compute as pc

        digest = hashlib.sha256(repr((self.image_shape, self.classes)).encode())
        digest.update(self.labels.cpu().numpy().data)
        column = self.rows.data.column(self.column)
        # lengths alone: Arrow knows them without touching the bytes
        lengths = pc.binary_length(pc.struct_field(column, "bytes")).to_pylist()
        paths = pc.struct_field(column, "path").to_pylist()
        for length, path in zip(lengths, paths, strict=True):
            size = file_size(Path(path)) if length is None and path else length
            digest.update(f"{size}\n".encode())
        return digest.digest()


def read(
    split: str, path: str, *, config: str | None = None, image: str | None = None, label: str | None = None,
    size: int = 64, channels: int = 3, revision: str | None = None,
) -> HubImages:  # fmt: skip
    """Images of `size` x `size` from a name on the hub, a folder of `save_to_disk`, or a folder of data files.

    `image` and `label` name the columns; without them they are found by their type. Where there is no split test,
    validation stands for it; a saved set that is not split is all or train.
    """
    shape = check_shape(size, channels)
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("datasets", f"hub:{path}") from error

    name = f"hub:{path}"
    rows = _split(_open(path, config, revision), split)
    column = image or _only("image", name, rows.features, datasets.Image)
    wanted = label or _only("label", name, rows.features, datasets.ClassLabel)
    for argument, given in (("image", column), ("label", wanted)):
        if given not in rows.features:
            raise ArgumentError(argument, given, f"one of the columns {', '.join(rows.features)}")
    if not isinstance(rows.features[column], datasets.Image):
        raise ArgumentError("image", column, "a column of images")
    labels, classes = _labels(name, rows, wanted)
    rows = rows.with_format(None).cast_column(column, datasets.Image(decode=False))
    return HubImages(name, split, rows, column, labels, classes, shape)


def _open(path: str, config: str | None, revision: str | None) -> Any:
    import datasets
    from datasets.exceptions import DatasetsError

    local = Path(path).expanduser()
    try:
        if any((local / file).is_file() for file in ("state.json", "dataset_dict.json")):
            return datasets.load_from_disk(str(local))
        return datasets.load_dataset(str(local) if local.is_dir() else path, config, revision=revision)
    except (OSError, ValueError, LookupError, DatasetsError) as error:
        where = "read" if local.is_dir() else "found as a folder, nor reached on the Hugging Face hub"
        raise DataError(f"hub:{path} cannot be {where}: {error}") from error


def _split(loaded: Any, split: str) -> Any:
    if isinstance(loaded, dict):
        for name in STANDS_FOR.get(split, (split,)):
            if name in loaded:
                return loaded[name]
        accepted = list(loaded)
    else:
        accepted = ["all", str(loaded.split or "train")]
        if split in accepted:
            return loaded
    raise ArgumentError("split", split, f"one of {', '.join(accepted)}")


def _only(argument: str, name: str, features: Any, kind: type) -> str:
    found = [str(column) for column, feature in features.items() if isinstance(feature, kind)]
    if not found and argument in features:
        return argument
    if len(found) != 1:
        some = f"several of them: {', '.join(found)}" if found else f"none among {', '.join(features)}"
        raise DataError(
            f"{name}: one column of type {kind.__name__} was expected, found {some}; name it by {argument}="
        )
    return found[0]


def _labels(name: str, rows: Any, column: str) -> tuple[Tensor, tuple[str, ...]]:
    import datasets

    feature, values = rows.features[column], rows.data.column(column)
    if values.null_count:
        raise DataError(f"{name}: {values.null_count} rows have no label in the column {column!r}")
    if isinstance(feature, datasets.ClassLabel):
        names = tuple(feature.names)
    elif isinstance(feature, datasets.Value) and "int" in feature.dtype:
        names = tuple(str(value) for value in range(max(values.to_pylist(), default=-1) + 1))
    else:
        raise DataError(
            f"{name}: the column {column!r} was expected to hold whole numbers or a ClassLabel, found {feature}; "
            "the method class_encode_column of datasets makes one of it"
        )
    return torch.tensor(values.to_pylist(), dtype=torch.int64), names


HUB = Source(
    read, (), None, None, None, "the Hugging Face hub, and datasets",
    found=lambda root: importlib.util.find_spec("datasets") is not None,
)  # fmt: skip
