import importlib.util
from pathlib import Path

import pytest

from attemper.attention import backend


@pytest.fixture(scope="session")
def hf():
    """The module hf_models.py, which stands beside this file."""
    spec = importlib.util.spec_from_file_location("hf_models", Path(__file__).with_name("hf_models.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def no_default():
    """The policy of models without their own is put back afterwards."""
    before = backend._Registered.policy
    yield
    backend._Registered.policy = before
