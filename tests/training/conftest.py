import pytest

from attemper.training import Options

TINY = {"data": "glyphs", "classes": 5, "per_class": 12, "size": 8, "width": 16, "depth": 2, "batch_size": 20}


@pytest.fixture
def tiny():
    """Options of a training that takes a tenth of a second: three steps an epoch."""
    return lambda **settings: Options(**TINY | {"epochs": 2, "device": "cpu"} | settings)
