from collections.abc import Callable

import pytest

from attemper.models import Classifier, build

NARROW = {"mlp": {"width": 16}, "vgg": {"width_multiplier": 1 / 8}, "vit": {"width_multiplier": 1 / 3}}


@pytest.fixture
def narrow() -> Callable[..., Classifier]:
    """`build` with ten classes, seed 0 and few channels."""

    def made(name: str, image_shape: tuple[int, int, int] = (3, 16, 16), **options: object) -> Classifier:
        width = NARROW.get(name[:3], {"width_multiplier": 1 / 4})
        return build(name, image_shape=image_shape, **{"classes": 10, "seed": 0, **width, **options})

    return made
