import os

import pytest
import torch
from hypothesis import settings

# tests share two cores with each other's subprocesses
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)
settings.register_profile("attemper", deadline=None, derandomize=True)
settings.load_profile("attemper")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Nothing a test draws is taken from, or left in, the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["ATTEMPER_CACHE"] = str(folder)
    return folder


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
