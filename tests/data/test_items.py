import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from attemper.data import MemoryImages, corrupt
from attemper.data.items import ItemImages
from attemper.errors import ArgumentError, DataError


class Pairs(Dataset):
    """Pairs of images and labels, with what attributes are given."""

    def __init__(self, images, labels, **attributes):
        self.images, self.labels, self.read = images, labels, 0
        self.__dict__.update(attributes)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        self.read += 1
        return self.images[index], self.labels[index]


@pytest.fixture
def pixels(draw):
    return torch.from_numpy(draw(5, 3, 8, 9))


LABELS = [2, 0, 1, 1, 0]


def pictures(pixels):
    return [Image.fromarray(image.permute(1, 2, 0).squeeze(2).numpy()) for image in pixels]


@pytest.mark.parametrize(
    "form",
    [
        lambda pixels: pixels,
        lambda pixels: pixels.float() / 255,
        lambda pixels: pixels.double() / 255,
        lambda pixels: (pixels.float() / 255).requires_grad_(),
        # within half a level of [0, 1]
        lambda pixels: pixels.float() / 255 * 1.002 - 0.001,
        pictures,
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_it_is_the_same_as_its_images_in_memory(pixels, form, channels, through_loader):
    pixels = pixels[:, :channels]
    held = MemoryImages("held", "all", pixels, torch.tensor(LABELS), tuple("012"))
    found = ItemImages(Pairs(form(pixels), LABELS))
    read, labels = through_loader(found)
    assert torch.equal(read, held.batch(range(5))[0])
    assert labels.tolist() == LABELS
    assert found.classes == tuple("012")
    assert found.fingerprint == held.fingerprint
    assert found.statistics == held.statistics
    assert repr(found) == f"<Pairs, all: 5 images of {channels}x8x9, 3 classes>"
    assert found.pixels(torch.tensor([], dtype=torch.int64)).shape == (0, channels, 8, 9)


@pytest.mark.parametrize("kind", ["noise", "blur", "jpeg"])
def test_it_is_corrupted_as_its_images_in_memory(pixels, kind):
    held = MemoryImages("held", "all", pixels, torch.tensor(LABELS), tuple("012"))
    found, expected = (corrupt(dataset, kind, 4, 7) for dataset in (Pairs(pictures(pixels), LABELS), held))
    assert torch.equal(found.batch(range(5))[0], expected.batch(range(5))[0])
    assert found.fingerprint == expected.fingerprint
    assert found.name == f"Pairs with {kind} of severity 4"


def test_torchs_own_sets_and_lists_are_read(pixels):
    whole = TensorDataset(pixels, torch.tensor(LABELS))
    assert ItemImages(whole).labels.tolist() == LABELS
    assert ItemImages(Subset(whole, [4, 2])).labels.tolist() == [0, 1]
    assert ItemImages([(pixels[0], np.int64(3))]).classes == tuple("0123")


@pytest.mark.parametrize("targets", [LABELS, torch.tensor(LABELS), np.array(LABELS, np.uint8)])
def test_labels_come_from_targets_without_a_pass(pixels, targets):
    dataset = Pairs(pixels, LABELS, targets=targets, classes=["ant", "bee", "cow", "dog"])
    found = ItemImages(dataset)
    assert dataset.read == 1
    assert found.labels.tolist() == LABELS
    assert found.classes == ("ant", "bee", "cow", "dog")


@pytest.mark.parametrize(
    "attributes",
    [
        {"targets": [2, 0, 1]},
        {"targets": ["c", "a", "b", "b", "a"]},
        {"targets": [2.5, 0, 1, 1, 0]},
        {"targets": [9] * 5, "target_transform": len},
        {"classes": 3},
    ],
)
def test_attributes_that_do_not_fit_the_items_are_passed_over(pixels, attributes):
    dataset = Pairs(pixels, LABELS, **attributes)
    found = ItemImages(dataset)
    assert found.labels.tolist() == LABELS
    assert found.classes == tuple("012")
    assert dataset.read == 6


def test_the_fingerprint_sees_every_byte(pixels):
    changed = pixels.clone()
    changed[4, 2, 7, 8] ^= 1
    made = [
        (pixels, LABELS, {}),
        (changed, LABELS, {}),
        (pixels, [0] * 5, {}),
        (pixels, LABELS, {"classes": list("abc")}),
    ]
    assert len({ItemImages(Pairs(images, labels, **more)).fingerprint for images, labels, more in made}) == 4


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (torch.zeros(3, 8, 8), "shape and label ((3, 8, 9), 1) were expected, found ((3, 8, 8), 1)"),
        (torch.zeros(1, 8, 9), "shape and label ((3, 8, 9), 1) were expected, found ((1, 8, 9), 1)"),
        (torch.full((3, 8, 9), 1.01), "numbers in [0, 1] were expected, found 1.01 to 1.01"),
        (torch.full((3, 8, 9), -0.01), "numbers in [0, 1] were expected, found -0.01 to -0.01"),
        (torch.full((3, 8, 9), torch.nan), "numbers in [0, 1] were expected, found nan to nan"),
        (torch.zeros(8, 9), "shape (channels, height, width) was expected, found torch.float32 (8, 9)"),
        (torch.zeros(3, 8, 9, dtype=torch.int64), "was expected, found torch.int64 (3, 8, 9)"),
        (Image.new("RGBA", (9, 8)), "a PIL image of mode L or RGB was expected, found one of mode RGBA"),
        (np.zeros((8, 9, 3)), "a tensor or PIL image was expected, found ndarray"),
    ],
)
def test_an_item_that_is_not_like_the_first_is_named(pixels, other, message):
    found = ItemImages(Pairs([*pixels[:3], other, pixels[4]], LABELS, targets=LABELS))
    assert len(found.batch([0, 4])[0]) == 2
    for use in (lambda: found[3], lambda: found.fingerprint):
        with pytest.raises(DataError, match=f"^item 3 of Pairs: .*{re.escape(message)}"):
            use()


def test_a_label_that_targets_does_not_have_is_named(pixels):
    found = ItemImages(Pairs(pixels, LABELS, targets=[2, 0, 1, 1, 2]))
    with pytest.raises(DataError, match=r"^item 4 of Pairs: shape .* \(\(3, 8, 9\), 2\) were expected, found .* 0\)$"):
        found[4]
    with pytest.raises(DataError, match="^item 3 of Pairs: 'float' object cannot be interpreted as an integer"):
        ItemImages(Pairs(pixels, [2, 0, 1, 1.0, 0]))


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(1, 2, 2), 0


@pytest.mark.parametrize(
    ("dataset", "came"),
    [
        (3, "int (object of type 'int' has no len())"),
        (None, "NoneType ("),
        ("abc", "str (item 0 of str: not enough values to unpack"),
        ({"a": 1}, "dict (0)"),
        ([1, 2], "list (item 0 of list: cannot unpack"),
        (Stream(), "Stream ("),
        (TensorDataset(torch.zeros(2, 1, 2, 2)), "TensorDataset (item 0 of TensorDataset: not enough values to unpack"),
        ([(torch.zeros(1, 2, 2), "ant")], "list (item 0 of list: 'str' object cannot be interpreted as an integer)"),
        ([(torch.full((1, 2, 2), 7.0), 0)], "list (item 0 of list: numbers in [0, 1] were expected, found 7 to 7)"),
        ([(torch.zeros(1, 0, 2), 0)], "list (item 0 of list: an image of bytes or floats"),
    ],
)
def test_what_is_no_set_of_images_is_refused(dataset, came):
    accepted = (
        "dataset: a data set of items (image, label), a tensor or PIL image and a whole number, is accepted, but "
    )
    with pytest.raises(ArgumentError, match=f"^{re.escape(accepted)}['\"]{re.escape(came)}"):
        corrupt(dataset, "noise")


def test_an_empty_set_is_refused():
    with pytest.raises(DataError, match="^list, split 'all': there is no image in it"):
        corrupt([], "noise")
