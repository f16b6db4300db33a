import pytest

from attemper.errors import ArgumentError, AttemperError, CheckpointError, DataError, FileError, MissingExtraError


def test_they_are_one_family_and_keep_to_pythons_own():
    for kind in (ArgumentError, CheckpointError, DataError, FileError, MissingExtraError):
        assert issubclass(kind, AttemperError)
    assert issubclass(ArgumentError, ValueError)
    assert issubclass(FileError, OSError)
    assert issubclass(MissingExtraError, ImportError)


def test_a_refusal_names_argument_what_came_and_what_is_accepted():
    assert str(ArgumentError("width", -1, "a whole number")) == "width: a whole number is accepted, but -1 came"
    assert len(str(ArgumentError("x", "y" * 1000, "less"))) < 150


def test_a_missing_package_is_named_with_its_command():
    with pytest.raises(ImportError, match=r"^hub data needs datasets: pip install 'attemper\[datasets\]'$"):
        raise MissingExtraError("datasets", "hub data")
