"""Data sets by name."""

import difflib
import importlib
import inspect
import os
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from .images import Images
from .source import Source, data_root

if TYPE_CHECKING:
    import pandas as pd

SOURCES = {
    "glyphs": ("glyphs", "GLYPHS"),
    "digits": ("digits", "DIGITS"),
    "fashion-mnist": ("fashion", "FASHION"),
    "cifar10": ("cifar", "CIFAR10"),
    "cifar100": ("cifar", "CIFAR100"),
    "svhn": ("svhn", "SVHN"),
    "folder:PATH": ("folder", "FOLDER"),
    "hub:NAME": ("hub", "HUB"),
}
NAMES = tuple(SOURCES)


def load(name: str, split: str, root: str | os.PathLike[str] | None = None, **options: Any) -> Images:
    """The data set `name` (`describe()` lists them), as items (image, label); its files are found under `root`.

    Images are float32 (channels, height, width) in [0, 1], not standardised. Without `root` the files are looked for
    under the environment variable ATTEMPER_DATA, or the folder data.

    >>> load("digits", "train")
    <digits, train: 1438 images of 1x8x8, 10 classes>
    """
    kind, path = _kind(name)
    source = _source(kind)
    if source.splits and split not in source.splits:
        raise ArgumentError("split", split, f"one of {', '.join(source.splits)}")
    if not isinstance(split, str):
        raise ArgumentError("split", split, "a string")
    parameters = inspect.signature(source.read).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    if unknown := [option for option in options if option not in known]:
        raise ArgumentError(f"options of {kind}", ", ".join(unknown), ", ".join(known) or "none")
    given = {"split": split, "root": data_root(root), "path": path}
    return source.read(*(given[p.name] for p in parameters if p.kind is not p.KEYWORD_ONLY), **options)


def describe(root: str | os.PathLike[str] | None = None) -> "pd.DataFrame":
    """A row per data set: name, splits, classes, image shape, training images, origin, and found.

    `found` says whether what it needs is here: its files under `root`, its optional package. Nothing is loaded.
    """
    import pandas as pd

    rows = []
    for name in NAMES:
        source = _source(name)
        rows.append(
            {
                "name": name,
                "splits": ", ".join(source.splits) or "its own",
                "classes": source.classes,
                "image_shape": source.image_shape and "x".join(map(str, source.image_shape)),
                "training_images": source.training_images,
                "origin": source.origin,
                "found": source.found(data_root(root)),
            }
        )
    return pd.DataFrame(rows).astype({"classes": "Int64", "training_images": "Int64"})


def _kind(name: str) -> tuple[str, str]:
    """Its name in NAMES, and what follows the colon."""
    kind, _, path = str(name).partition(":")
    for known in NAMES:
        if name == known or (path and known.startswith(f"{kind}:")):
            return known, path
    nearest = difflib.get_close_matches(str(name).lower(), NAMES, 1, 0.5)
    hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
    raise ArgumentError("name", name, f"one of {', '.join(NAMES)}{hint}")


def _source(name: str) -> Source:
    module, constant = SOURCES[name]
    source: Source = getattr(importlib.import_module(f".{module}", __package__), constant)
    return source
