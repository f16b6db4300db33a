"""Small files and sets that several tests of data read."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from attemper.data import Images


@pytest.fixture
def draw() -> Callable[..., np.ndarray]:
    """(shape, seed) -> random bytes of that shape."""
    return lambda *shape, seed=0: np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def write_image() -> Callable[[Path, np.ndarray], Path]:
    """Writes an array (height, width[, 3]) to a file of the kind that its name says."""

    def write(path: Path, array: np.ndarray) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(path)
        return path

    return write


@pytest.fixture
def through_loader() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """All images and labels of a set, as torch's DataLoader gives them; checks them against items and batch."""

    def load(images: Images, workers: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        parts = list(DataLoader(images, batch_size=2, num_workers=workers))
        pixels, labels = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
        assert pixels.dtype == torch.float32
        assert pixels.shape == (len(images), *images.image_shape)
        assert pixels.min() >= 0
        assert pixels.max() <= 1
        whole, whole_labels = images.batch(torch.arange(len(images)))
        assert torch.equal(pixels, whole)
        assert torch.equal(labels, whole_labels)
        item, label = images[-1]
        assert torch.equal(item, pixels[-1])
        assert type(label) is int
        assert label == labels[-1]
        return pixels, labels

    return load
