"""Files that appear whole or not at all."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import FileError


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; it takes the name `path` when the block ends without an error."""
    make_folder(path.parent)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise FileError(f"cannot write into {path.parent}: {error.strerror}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _flush(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
        _flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yields a temporary folder beside `path`, which must not exist; it takes that name when the block ends well."""
    make_folder(path.parent)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield temporary
        for path_inside in (*temporary.iterdir(), temporary):
            _flush(path_inside)
        temporary.chmod(0o755)
        temporary.rename(path)
        _flush(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def make_folder(path: Path) -> Path:
    """Makes `path` and its parents; says why where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise FileError(f"cannot make the folder {path}: a file stands there") from error
    except NotADirectoryError as error:
        raise FileError(f"cannot make the folder {path}: a file stands where one of its parents should be") from error
    except OSError as error:
        raise FileError(f"cannot make the folder {path}: {error.strerror}") from error
    return path


def write_json(path: Path, value: Any) -> None:
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise FileError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise FileError(f"{path} is damaged: a JSON object was expected, found {type(value).__name__}")
    return value


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
