"""What a training can be told. Everything has a default; `Options.resolved` fills in those that depend on others."""

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from ..errors import ArgumentError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Factor = Annotated[float, Field(gt=0, le=1e6)]


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise _refusal(error, list(type(self).model_fields)) from None


class Data(_Group):
    """What is trained on."""

    data: str = "glyphs"
    """Name of the data: see `attemper data`."""
    root: Annotated[Path | None, Strict(False)] = None
    """Folder that holds the data's files. Without it: $ATTEMPER_DATA, or data/ here."""
    classes: Count | None = None
    """Number of classes, where fewer can be drawn. Without it: all (glyphs: 100)."""
    per_class: Count | None = None
    """Training images of each class, where they are drawn. Without it: glyphs 200."""
    size: Count | None = None
    """Pixels a side, where images are drawn or resized. Without it: glyphs 20, folder and hub 64."""
    augment: Literal["none", "crop", "flip", "crop-flip"] | None = None
    """Random change of training images. Without it: crop-flip for CIFAR, folders and hubs, none for the others."""
    shifted: str | None = None
    """Shifted data: "own" (a split of the data's), KIND:SEVERITY (a corruption of its test images) or "none".
    Without it: own where the data has such a split, else noise:3."""


class Model(_Group):
    """What is trained."""

    model: str = "mlp"
    """mlp, vgg11 to vgg19, resnet18 to resnet56, vit-tiny, vit-small or vit-base."""
    depth: Count | None = None
    """Hidden layers of an MLP. Without it: 6."""
    width: Count | None = None
    """Units in a hidden layer of an MLP. Without it: 256."""
    width_multiplier: Factor = 1.0
    """Factor on every width."""
    patch_size: Count | None = None
    """Pixels a side of a ViT's patch. Without it: 16, or 4 for images of up to 64 pixels a side."""
    batch_norm: bool | None = None
    """Batch norm or not. Without it: as the architecture has it."""
    init_scale: Positive = 1.0
    """Factor on the initial weights."""
    normalisation: Literal["none", "before-classifier", "logits"] = "none"
    """Where norms are fixed."""


class Temperature(_Group):
    """The temperature of the loss."""

    temperature: Positive = 1.0
    """Softmax temperature T in training; the initial one where it changes."""
    temperature_schedule: Literal["constant", "linear", "cosine", "step", "learned"] = "constant"
    """How it changes from temperature to temperature_end, or that it is learned."""
    temperature_end: Positive | None = None
    """Temperature at the end of a schedule."""


class Optimisation(_Group):
    """How it is trained."""

    epochs: Count = 8
    """Passes over the training data."""
    batch_size: Count = 128
    """Images a step, over all processes; an epoch leaves out what fills no batch."""
    optimizer: Literal["sgd", "adam", "adamw"] | None = None
    """Without it: adamw for ViTs, sgd for the others."""
    lr: Positive | None = None
    """Learning rate at T = 1. Without it: mlp 0.02, vgg 0.01, resnet 0.1, vit 0.001."""
    lr_rule: Literal["plain", "sqrt", "times-temperature"] | None = None
    """What the temperature does to the learning rate: nothing, times sqrt(T), or times T, which undoes that gradients
    shrink by T. Without it: sqrt for sgd (one rate cannot fit both T = 1 and T = 100 in few epochs), plain for adam."""
    lr_schedule: Literal["constant", "step", "cosine", "one-cycle"] = "cosine"
    """How the learning rate changes over the training."""
    milestones: Annotated[tuple[Share, ...], Strict(False)] = (0.5, 0.75)
    """Where step schedules step, as shares of the training; learning rates are divided by ten there."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Of sgd."""
    weight_decay: NonNegative | None = None
    """Without it: none for mlp, 0.05 for vit, 1e-4 for the others."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the target spread over all classes."""
    clip: Positive | None = None
    """Largest norm of the gradient."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: mixed precision, on devices that have it."""


class Running(_Group):
    """Where and how often."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of initial weights, order, augmentation and drawn data."""
    device: str | None = None
    """cpu, cuda, cuda:1, mps, ... Without it: the accelerator where there is one."""
    threads: Annotated[int, Field(ge=1, le=4096)] | None = None
    """CPU threads. Without it: torch's choice."""
    evaluate_every: Annotated[int, Field(ge=0)] = 1
    """Epochs between evaluations on test data; 0: only at the end."""
    log_every: Count = 25
    """Steps between lines of metrics."""
    checkpoint_every: NonNegative = 2.0
    """Seconds between checkpoints, more where writing them would take over 2 % of the time; 0: one a step. Ctrl-C and
    SIGTERM leave one too."""


# where a run is resumed with another of these, its result is the same
INDIFFERENT = {"root", "device", "threads", "checkpoint_every"}


class Options(Running, Optimisation, Temperature, Model, Data):
    """All of a training's options, flat.

    >>> Options(model="mlp", temperature=100.0).resolved().lr_rule
    'sqrt'
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        scheduled = self.temperature_schedule in ("linear", "cosine", "step")
        if scheduled != (self.temperature_end is not None):
            accepted = "a number" if scheduled else f"none with temperature_schedule {self.temperature_schedule!r}"
            raise ArgumentError("temperature_end", self.temperature_end, accepted)

    def resolved(self) -> Self:
        """The same with every option that depends on another one filled in."""
        family = next((family for family in RECIPES if self.model.startswith(family)), "mlp")
        optimizer = self.optimizer or ("adamw" if family == "vit" else "sgd")
        recipe = RECIPES[family] | {
            "optimizer": optimizer,
            "lr_rule": "sqrt" if optimizer == "sgd" else "plain",
            "augment": "crop-flip" if self.data.startswith(("cifar", "folder:", "hub:")) else "none",
            "shifted": "own" if self.data == "glyphs" else "noise:3",
        }
        return self.replaced(**{name: value for name, value in recipe.items() if getattr(self, name) is None})

    def replaced(self, **settings: Any) -> Self:
        return type(self)(**dict(self) | settings)


RECIPES: dict[str, dict[str, Any]] = {
    "mlp": {"lr": 0.02, "weight_decay": 0.0},
    "vgg": {"lr": 0.01, "weight_decay": 1e-4},
    "resnet": {"lr": 0.1, "weight_decay": 1e-4},
    "vit": {"lr": 0.001, "weight_decay": 0.05},
}


def _refusal(error: ValidationError, names: list[str]) -> ArgumentError:
    """The first thing pydantic found, in the words of the house."""
    first = error.errors()[0]
    name = ".".join(map(str, first["loc"])) or "options"
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, names, 1)
        return ArgumentError("options", name, f"{near[0]!r}, perhaps," if near else f"one of {', '.join(names)}")
    accepted = first["msg"].removeprefix("Input should be ")
    return ArgumentError(name, first["input"], f"a number {accepted}" if " than " in accepted else accepted)
