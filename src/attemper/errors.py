"""Everything attemper raises on purpose is an AttemperError; its message says what came and what is accepted."""


class AttemperError(Exception):
    """The family's head: catch it to catch all of them."""


class ArgumentError(AttemperError, ValueError):
    """An argument that cannot be used: its name, what came, what is accepted."""

    def __init__(self, name: str, came: object, accepted: str) -> None:
        super().__init__(f"{name}: {accepted} is accepted, but {_shown(came)} came")


class DataError(AttemperError):
    """Data that is missing, damaged or out of range."""


class FileError(AttemperError, OSError):
    """A file or folder that cannot be read or written."""


class CheckpointError(AttemperError):
    """A checkpoint that does not belong to what is asked of it."""


class MissingExtraError(AttemperError, ImportError):
    """An optional package that is not installed."""

    def __init__(self, package: str, wanted_for: str) -> None:
        super().__init__(f"{wanted_for} needs {package}: pip install 'attemper[{package}]'")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
