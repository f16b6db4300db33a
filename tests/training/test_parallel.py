import pytest
import torch

from attemper.errors import ArgumentError
from attemper.training.parallel import Processes, choose_device, processes, threads


def test_shares_cover_everything_once():
    items = torch.arange(11)
    shares = [Processes(rank, 3).share(items) for rank in range(3)]
    assert torch.equal(torch.cat(shares), items)
    assert [Processes(rank, 3).leads for rank in range(3)] == [True, False, False]


def test_one_process_is_alone():
    with processes(torch.device("cpu")) as group:
        assert group == Processes(0, 1)
        group.wait()


def test_threads_are_those_of_before_afterwards():
    before = torch.get_num_threads()
    with threads(3):
        assert torch.get_num_threads() == 3
    with threads(None):
        assert torch.get_num_threads() == before
    assert torch.get_num_threads() == before


def test_devices():
    assert choose_device("cpu") == torch.device("cpu")
    for name in ("cuda:99", "abacus", "meta:x", "meta"):
        with pytest.raises(ArgumentError, match="^device: a device that torch can use here"):
            choose_device(name)
