import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attemper.data.augment import crop_and_flip
from attemper.errors import ArgumentError


def one_by_one(images, seed, padding, flip, crop):
    """The same draws, an image at a time."""
    generator = torch.Generator().manual_seed(seed)
    n, channels, height, width = images.shape
    shifts = torch.randint(0, 2 * padding + 1, (2, n, 1), generator=generator)[:, :, 0] if crop else None
    mirrored = torch.rand(n, 1, generator=generator)[:, 0] < 0.5 if flip else torch.zeros(n, dtype=torch.bool)
    found = []
    for i in range(n):
        image = images[i]
        if shifts is not None:
            top, left = shifts[:, i].tolist()
            larger = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=images.dtype)
            larger[:, padding : padding + height, padding : padding + width] = image
            image = larger[:, top : top + height, left : left + width]
        found.append(image.flip(2) if mirrored[i] else image)
    return torch.stack(found)


@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 7), st.integers(1, 7)),
    dtype=st.sampled_from([torch.float32, torch.uint8]),
    padding=st.integers(0, 5),
    flip=st.booleans(),
    crop=st.booleans(),
    seed=st.integers(0, 999),
)
def test_equals_the_reference(shape, dtype, padding, flip, crop, seed):
    images = (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 255).to(dtype)
    before = images.clone()
    generator = torch.Generator().manual_seed(seed)
    found = crop_and_flip(images, generator, padding=padding, flip=flip, crop=crop)
    assert found.dtype == dtype
    assert torch.equal(found, one_by_one(images, seed, padding, flip, crop))
    assert torch.equal(images, before)


def test_every_image_has_its_own_draw():
    image = torch.arange(1.0, 1 + 10 * 10).view(1, 1, 10, 10).expand(2000, -1, -1, -1)
    found = crop_and_flip(image, torch.Generator().manual_seed(0), padding=4)
    # 9 x 9 places, mirrored or not
    assert len(found.unique(dim=0)) == 162
    mirrored = (found[:, 0, 4, 4] > found[:, 0, 4, 5]).float().mean()
    assert 0.45 < mirrored < 0.55


def test_a_generator_goes_on_and_starts_again():
    images = torch.rand(16, 3, 8, 8)
    generator = torch.Generator().manual_seed(3)
    first, second = crop_and_flip(images, generator), crop_and_flip(images, generator)
    assert not torch.equal(first, second)
    assert torch.equal(first, crop_and_flip(images, generator.manual_seed(3)))


@pytest.mark.parametrize("crop", [True, False])
def test_a_part_of_a_batch_is_changed_as_in_the_whole(crop):
    images = torch.rand(12, 3, 8, 8)
    whole = crop_and_flip(images, torch.Generator().manual_seed(3), crop=crop)
    for first in (0, 4, 8):
        generator = torch.Generator().manual_seed(3)
        part = crop_and_flip(images[first : first + 4], generator, crop=crop, batch=12, first=first)
        assert torch.equal(part, whole[first : first + 4])
    with pytest.raises(ArgumentError, match="first: a place that leaves room for 4 images in a batch of 12"):
        crop_and_flip(images[:4], torch.Generator(), batch=12, first=9)


def test_without_crop_and_flip_nothing_changes():
    images = torch.rand(4, 1, 5, 6)
    assert torch.equal(crop_and_flip(images, torch.Generator(), crop=False, flip=False), images)
    assert crop_and_flip(images[:0], torch.Generator()).shape == (0, 1, 5, 6)


def test_refuses_what_it_cannot_use():
    with pytest.raises(
        ArgumentError, match=r"images: a shape \(n, channels, height, width\) is accepted, but \(3, 8, 8\)"
    ):
        crop_and_flip(torch.rand(3, 8, 8), torch.Generator())
    with pytest.raises(ArgumentError, match="padding: a whole number from 0 is accepted, but -1 came"):
        crop_and_flip(torch.rand(1, 3, 8, 8), torch.Generator(), padding=-1)
