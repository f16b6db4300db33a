import sys

import pytest
import torch
from sklearn.datasets import load_digits

from attemper.data import load
from attemper.errors import ArgumentError, MissingExtraError


def rows(images):
    return [tuple(image.flatten().tolist()) for image in images]


def test_train_and_test_are_all_the_digits_once(through_loader):
    train, test = load("digits", "train"), load("digits", "test")
    both = torch.cat([train.images, test.images])
    original = load_digits()
    expected = torch.from_numpy(original.images * 255 / 16).round().to(torch.uint8)[:, None]
    assert sorted(rows(both)) == sorted(rows(expected))
    labels = dict(zip(rows(expected), original.target.tolist(), strict=True))
    for part in (train, test):
        assert [labels[row] for row in rows(part.images)] == part.labels.tolist()
    through_loader(test)


def test_a_fifth_of_each_class_is_held_out():
    train, test = load("digits", "train"), load("digits", "test")
    of_class = torch.bincount(torch.from_numpy(load_digits().target))
    assert torch.bincount(test.labels).tolist() == [round(count / 5) for count in of_class.tolist()]
    assert torch.equal(torch.bincount(train.labels) + torch.bincount(test.labels), of_class)
    assert train.classes == tuple("0123456789")
    assert train.image_shape == (1, 8, 8)
    assert train.images.max() == 255


def test_the_seed_chooses_the_split():
    first, again, other = load("digits", "test"), load("digits", "test", seed=0), load("digits", "test", seed=1)
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint
    for seed in ("x", -1, 2**70):
        with pytest.raises(ArgumentError, match=f"^seed: a whole number from 0.* is accepted, but {seed!r} came"):
            load("digits", "test", seed=seed)


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtraError, match=r"the digits data needs scikit-learn: pip install 'attemper\[scikit"):
        load("digits", "train")
