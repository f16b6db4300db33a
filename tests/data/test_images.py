import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from attemper.data import MemoryImages
from attemper.data.images import Images, channel_statistics
from attemper.errors import ArgumentError, DataError


@pytest.fixture
def images():
    pixels = torch.randint(0, 256, (10, 3, 4, 5), dtype=torch.uint8)
    return MemoryImages("some", "train", pixels, torch.arange(10) % 4, ("a", "b", "c", "d"))


def test_items_and_batches_are_the_pixels_over_255(images):
    assert len(images) == 10
    assert images.image_shape == (3, 4, 5)
    batch, labels = images.batch(torch.tensor([7, 2]))
    assert batch.dtype == torch.float32
    np.testing.assert_allclose(batch, images.images[[7, 2]].numpy() / 255, rtol=1e-6)
    assert labels.tolist() == [3, 2]
    image, label = images[7]
    assert torch.equal(image, batch[0])
    assert type(label) is int
    assert label == 3
    assert torch.equal(images[-3][0], image)
    assert repr(images) == "<some, train: 10 images of 3x4x5, 4 classes>"


def test_a_batch_by_any_sequence_of_indices(images):
    expected = images.batch(torch.tensor([9, 0, 9]))
    for indices in ([9, 0, 9], (-1, -10, -1), np.array([9, 0, 9], np.uint8), torch.tensor([-1, 0, 9])):
        for found, wanted in zip(images.batch(indices), expected, strict=True):
            assert torch.equal(found, wanted)
    assert images.batch([])[0].shape == (0, 3, 4, 5)


@pytest.mark.parametrize("indices", [[0, 10], [-11], torch.tensor([10]), np.array([3, 10])])
def test_an_index_out_of_range_is_an_index_error(images, indices):
    with pytest.raises(IndexError, match=f"^image {next(i for i in indices if not -10 <= i < 10)} of 10$"):
        images.batch(indices)


@pytest.mark.parametrize("indices", [[0.5], ["a"], [None], [[0, 1]], torch.ones(10, dtype=torch.bool), torch.tensor(3)])
def test_indices_that_are_no_whole_numbers_are_refused(images, indices):
    with pytest.raises(ArgumentError, match="^indices: a sequence of whole numbers is accepted, but "):
        images.batch(indices)


def test_a_loader_gives_every_image_once(images):
    loader = DataLoader(images, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(0), num_workers=2)
    batches = list(loader)
    assert [len(labels) for _, labels in batches] == [4, 4, 2]
    found = torch.cat([pixels for pixels, _ in batches]).mul(255).round().byte().flatten(1)
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, images.images.flatten(1).tolist()))


def test_statistics_are_exact(images):
    scaled = images.images.double().numpy() / 255
    np.testing.assert_allclose(images.statistics.mean, scaled.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(images.statistics.std, scaled.std((0, 2, 3)), rtol=1e-12)
    mean, std = channel_statistics(torch.full((3, 1, 2, 2), 255, dtype=torch.uint8))
    assert mean == (1.0,)
    assert std == (0.0,)


def test_statistics_of_a_set_not_in_memory_come_from_a_sample_that_stays_the_same():
    class Counting(Images):
        read = 0

        def pixels(self, indices):
            Counting.read += len(indices)
            return (indices % 256).byte().view(-1, 1, 1, 1)

        def identity(self):
            return b""

    many = [Counting("many", "train", torch.zeros(10_000, dtype=torch.long), ("a",), (1, 1, 1)) for _ in range(2)]
    first, second = (one.statistics for one in many)
    assert Counting.read == 2 * 2048
    assert first == second
    assert abs(first.mean[0] - 0.5) < 0.02


def test_the_fingerprint_changes_with_a_pixel_a_label_or_a_name(images):
    def other(pixels=images.images, labels=images.labels, classes=images.classes):
        return MemoryImages("other", "test", pixels, labels, classes).fingerprint

    changed = images.images.clone()
    changed[9, 2, 3, 4] ^= 1
    assert other() == images.fingerprint
    assert (
        len({images.fingerprint, other(changed), other(labels=images.labels.flip(0)), other(classes=tuple("wxyz"))})
        == 4
    )


def test_moving_keeps_everything(images):
    moved = images.to("cpu")
    assert moved.fingerprint == images.fingerprint
    assert moved.statistics == images.statistics


def test_what_is_refused():
    pixels, labels = torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1])
    with pytest.raises(DataError, match=r"^empty, split 'train': there is no image in it"):
        MemoryImages("empty", "train", pixels[:0], labels[:0], ("a",))
    with pytest.raises(DataError, match=r"^x, split 'train': labels from 0 to 1, but there are 1 classes"):
        MemoryImages("x", "train", pixels, labels, ("a",))
    with pytest.raises(DataError, match="labels from -1 to 0"):
        MemoryImages("x", "train", pixels, labels - 1, ("a",))
    with pytest.raises(ArgumentError, match=r"^images: uint8 \(n, channels, height, width\) is accepted, but 'torch"):
        MemoryImages("x", "train", pixels.float(), labels, ("a", "b"))
    with pytest.raises(ArgumentError, match="^labels: one for each of 2 images is accepted, but '1 of them' came"):
        MemoryImages("x", "train", pixels, labels[:1], ("a", "b"))
    for index in (2, -3):
        with pytest.raises(IndexError, match=f"image {index} of 2"):
            MemoryImages("x", "train", pixels, labels, ("a", "b"))[index]
