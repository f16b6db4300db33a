"""Models by name."""

import contextlib
import difflib
from collections.abc import Iterator

import torch

from ..checks import choices, positive, shape, whole
from ..errors import ArgumentError
from . import resnet, vgg, vit
from .classifier import Classifier
from .mlp import MLP
from .parts import Body, scaled

_DEPTHS = {"vgg": tuple(vgg.STAGES), "resnet": tuple(resnet.STAGES)}
_WITH_DEPTH = {f"{family}{depth}": (family, depth) for family, depths in _DEPTHS.items() for depth in depths}
_WITH_SIZE = {f"vit-{size}": size for size in vit.WIDTHS} | {"vit": "tiny"}
NAMES = ("mlp", *_WITH_DEPTH, *(name for name in _WITH_SIZE if name != "vit"))


def build(
    name: str,
    *,
    image_shape: tuple[int, int, int],
    classes: int,
    depth: int | None = None,
    width: int | None = None,
    width_multiplier: float = 1.0,
    batch_norm: bool | None = None,
    init_scale: float = 1.0,
    normalisation: str = "none",
    patch_size: int | None = None,
    seed: int | None = None,
) -> Classifier:
    """A classifier of images (n, *image_shape), image_shape being (channels, height, width).

    name: one of NAMES; "vgg" and "resnet" with a depth; "vit", which is "vit-tiny".
    depth, width: of an mlp's hidden layers (6 of 256).
    width_multiplier: of every width; a vit's becomes a multiple of 64.
    batch_norm: by default on in vgg and resnet, off in mlp; in a vit it takes the place of layer norm.
    init_scale, normalisation: see Classifier.
    patch_size: of a vit; by default 16, or 4 for small images.
    seed: the first weights come from it alone, on any device, and torch's random state is left as it was.

    Images of up to 64 pixels a side take an architecture's CIFAR form, larger ones its ImageNet form.

    >>> model = build("resnet20", image_shape=(3, 32, 32), classes=10, seed=0)
    >>> sum(p.numel() for p in model.parameters()), model.layers()[:2]
    (269722, ['body.stem', 'body.blocks.0'])
    """
    family = _family(name)
    for option, value, families in (
        ("depth", depth, ("mlp", *_DEPTHS)),
        ("width", width, ("mlp",)),
        ("patch_size", patch_size, ("vit",)),
    ):
        if value is not None and (family not in families or (option == "depth" and name in _WITH_DEPTH)):
            raise ArgumentError(option, value, f"nothing beside {name} (it belongs to {choices(families)})")
    if batch_norm is not None and not isinstance(batch_norm, bool):
        raise ArgumentError("batch_norm", batch_norm, "True, False or None")
    image_shape, multiplier = shape(image_shape), positive("width_multiplier", width_multiplier)

    device = torch.get_default_device()
    with contextlib.nullcontext() if seed is None else _drawn_from(whole("seed", seed, 0)):
        body: Body
        if family == "mlp":
            hidden = scaled(whole("width", 256 if width is None else width), multiplier)
            body = MLP(image_shape, whole("depth", 6 if depth is None else depth), hidden, bool(batch_norm))
        elif family == "vit":
            body = vit.ViT(image_shape, _WITH_SIZE[name], multiplier, bool(batch_norm), patch_size)
        else:
            convolutional = vgg.VGG if family == "vgg" else resnet.ResNet
            body = convolutional(image_shape, _layers(name, depth), multiplier, batch_norm is not False)
        model = Classifier(
            body, image_shape=image_shape, classes=classes, normalisation=normalisation, init_scale=init_scale
        )
    return model.to(device)


def _family(name: str) -> str:
    families = dict.fromkeys(_WITH_SIZE, "vit") | {name: family for name, (family, _) in _WITH_DEPTH.items()}
    families |= {family: family for family in ("mlp", *_DEPTHS)}
    if isinstance(name, str) and name in families:
        return families[name]
    nearest = difflib.get_close_matches(str(name).lower(), families, 1)
    every = f"one of {', '.join(NAMES)}"
    raise ArgumentError("name", name, f"{nearest[0]} (the nearest), or {every}," if nearest else every)


def _layers(name: str, depth: int | None) -> int:
    if name in _WITH_DEPTH:
        return _WITH_DEPTH[name][1]
    if depth not in _DEPTHS[name]:
        raise ArgumentError("depth", depth, choices(sorted(_DEPTHS[name])))
    return depth


@contextlib.contextmanager
def _drawn_from(seed: int) -> Iterator[None]:
    """On the CPU, where a seed gives the same numbers whatever the device."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # torch.manual_seed would seed the CUDA generators too
        torch.default_generator.manual_seed(seed)
        yield
