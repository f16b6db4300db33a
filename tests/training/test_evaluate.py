import math

import numpy as np
import pytest
import torch
from torch import nn

from attemper.data import MemoryImages
from attemper.models import build
from attemper.training.evaluate import evaluate
from attemper.training.parallel import Processes

PLAIN = torch.autocast("cpu", enabled=False)


@pytest.fixture
def images():
    pixels = torch.randint(0, 256, (50, 1, 4, 4), dtype=torch.uint8)
    return MemoryImages("x", "test", pixels, torch.arange(50) % 3, ("a", "b", "c"))


def run(model, images, indices=None, temperature=1.0, batch=7):
    indices = torch.arange(50) if indices is None else indices
    return evaluate(model, images, indices, temperature, batch, torch.device("cpu"), Processes(0, 1), PLAIN)


def test_it_is_the_mean_over_all_images(images):
    model = build("mlp", image_shape=(1, 4, 4), classes=3, depth=1, seed=0).eval()
    found = run(model, images, temperature=4.0)
    logits = model(images.batch(torch.arange(50))[0]).detach().double().numpy()
    p = np.exp(logits / 4) / np.exp(logits / 4).sum(1, keepdims=True)
    labels = images.labels.numpy()
    assert found.accuracy == (logits.argmax(1) == labels).mean()
    assert found.loss == pytest.approx(-np.log(p[np.arange(50), labels]).mean(), rel=1e-6)
    assert found.logits_norm == pytest.approx(np.linalg.norm(logits, axis=1).mean(), rel=1e-6)
    np.testing.assert_allclose(found.logits.covariance, np.cov(logits.T, bias=True), atol=1e-6)
    assert found.logits.count == 50
    assert found.finite


def test_only_the_images_that_were_asked_for_count(images):
    model = build("mlp", image_shape=(1, 4, 4), classes=3, depth=1, seed=0).eval()
    some = torch.tensor([3, 4, 40])
    right = (model(images.batch(some)[0]).argmax(1) == images.labels[some]).double().mean()
    assert run(model, images, some).accuracy == pytest.approx(float(right))
    assert run(model, images, some).logits.count == 3


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_seen(images, value):
    model = build("mlp", image_shape=(1, 4, 4), classes=3, depth=1, seed=0).eval()
    nn.init.constant_(model.classifier.bias, value)
    assert not run(model, images).finite
