"""From options to the things that train: data, model, loss, optimizer, learning rate."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ..data.augment import crop_and_flip
from ..data.corrupt import corrupt
from ..data.images import Images
from ..data.load import load
from ..errors import ArgumentError
from ..knob import schedules
from ..knob.losses import Learned, TemperedCrossEntropy
from ..models.build import build
from ..models.classifier import Classifier
from .options import Options


def load_splits(options: Options) -> dict[str, Images]:
    """train, test and, unless there is none, shifted."""
    wanted = {"classes": options.classes, "size": options.size}
    given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    if options.data == "glyphs":
        given["seed"] = options.seed
    few = {} if options.per_class is None else {"per_class": options.per_class}
    train = load(options.data, "train", options.root, **given, **few)

    if options.data.startswith("folder:"):
        given["classes"] = train.classes  # a class that test images lack keeps its number
    test = load(options.data, "test", options.root, **given)
    splits = {"train": train, "test": test}
    if options.shifted == "own":
        splits["shifted"] = load(options.data, "shifted", options.root, **given)
    elif options.shifted not in (None, "none"):
        kind, _, severity = options.shifted.partition(":")
        if not severity.isdigit():
            raise ArgumentError("shifted", options.shifted, "'own', 'none' or KIND:SEVERITY, as in noise:3,")
        splits["shifted"] = corrupt(test, kind, int(severity))
    return splits


def build_model(options: Options, image_shape: Sequence[int], classes: int) -> Classifier:
    channels, height, width = image_shape
    return build(
        options.model,
        image_shape=(channels, height, width),
        classes=classes,
        depth=options.depth,
        width=options.width,
        width_multiplier=options.width_multiplier,
        batch_norm=options.batch_norm,
        init_scale=options.init_scale,
        normalisation=options.normalisation,
        patch_size=options.patch_size,
        seed=options.seed,
    )


def temperature_schedule(options: Options) -> schedules.Schedule:
    """Temperature by progress; a learned one stands at its initial value."""
    start, end = options.temperature, options.temperature_end
    if end is None:
        return schedules.constant(start)
    if options.temperature_schedule == "step":
        steps = len(options.milestones)
        between = [start * (end / start) ** (k / steps) for k in range(steps + 1)]
        return schedules.step(between, options.milestones)
    return {"linear": schedules.linear, "cosine": schedules.cosine}[options.temperature_schedule](start, end)


def build_loss(options: Options) -> TemperedCrossEntropy:
    learned = options.temperature_schedule == "learned"
    temperature = Learned(options.temperature) if learned else temperature_schedule(options)
    return TemperedCrossEntropy(temperature, label_smoothing=options.label_smoothing)


def build_optimizer(options: Options, model: nn.Module, loss: nn.Module) -> torch.optim.Optimizer:
    """A learned temperature trains at the same rate, without weight decay."""
    groups: list[dict[str, Any]] = [{"params": list(model.parameters()), "weight_decay": options.weight_decay}]
    if learned := list(loss.parameters()):
        groups.append({"params": learned, "weight_decay": 0.0})
    assert options.lr is not None
    fused = next(model.parameters()).device.type in ("cpu", "cuda")
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum, fused=fused)
    adam = torch.optim.AdamW if options.optimizer == "adamw" else torch.optim.Adam
    return adam(groups, lr=options.lr, fused=fused)


def learning_rate(options: Options) -> schedules.Schedule:
    """Learning rate by progress: its schedule times what the rule makes of the temperature there."""
    assert options.lr is not None
    assert options.lr_rule is not None
    if options.lr_schedule == "cosine":
        rate = schedules.cosine(options.lr, 0.0)
    elif options.lr_schedule == "one-cycle":
        rate = schedules.one_cycle(options.lr)
    elif options.lr_schedule == "step":
        rate = schedules.step([options.lr * 0.1**k for k in range(len(options.milestones) + 1)], options.milestones)
    else:
        rate = schedules.constant(options.lr)
    temperature = temperature_schedule(options)
    power = {"plain": 0.0, "sqrt": 0.5, "times-temperature": 1.0}[options.lr_rule]
    return lambda progress: rate(progress) * temperature(progress) ** power


def build_augment(options: Options) -> Callable[..., torch.Tensor] | None:
    if options.augment in (None, "none"):
        return None
    crop, flip = "crop" in str(options.augment), "flip" in str(options.augment)
    return functools.partial(crop_and_flip, crop=crop, flip=flip)


def mixed_precision(options: Options, device: torch.device) -> torch.autocast:
    wanted = options.precision == "bfloat16"
    if wanted and not torch.amp.is_autocast_available(device.type):
        raise ArgumentError("precision", options.precision, f"'float32' on {device}")
    return torch.autocast(device.type, torch.bfloat16, enabled=wanted)
