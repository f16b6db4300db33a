import torch

from attemper.data.images import Images, MemoryImages
from attemper.training.batches import AHEAD, batches, on_device

CPU = torch.device("cpu")


class Slow(Images):
    """A set that is read when asked, and counts it."""

    def __init__(self):
        super().__init__("slow", "train", torch.arange(20) % 4, tuple("abcd"), (1, 1, 1))
        self.asked = []

    def pixels(self, indices):
        self.asked.append(indices.tolist())
        return (10 * indices).byte().view(-1, 1, 1, 1)

    def identity(self):
        return b""


def test_every_batch_comes_once_and_in_order():
    parts = list(torch.randperm(20).split(3))
    slow = Slow()
    memory = MemoryImages("m", "train", slow.pixels(torch.arange(20)), slow.labels, slow.classes)
    slow.asked.clear()
    for images in (slow, memory):
        found = list(batches(images, iter(parts), CPU))
        assert [labels.tolist() for _, labels in found] == [(part % 4).tolist() for part in parts]
        assert [pixels.mul(255).round().flatten().tolist() for pixels, _ in found] == [(10 * p).tolist() for p in parts]
    assert slow.asked == [part.tolist() for part in parts]


def test_it_reads_ahead_but_not_far():
    slow = Slow()
    coming = batches(slow, torch.arange(20).split(2), CPU)
    next(coming)
    coming.close()
    assert len(slow.asked) <= 1 + AHEAD


def test_a_set_in_memory_moves_to_the_device_and_another_stays():
    slow = Slow()
    assert on_device(slow, CPU) is slow
    memory = MemoryImages("m", "train", slow.pixels(torch.arange(20)), slow.labels, slow.classes)
    assert on_device(memory, torch.device("meta")).images.device.type == "meta"
