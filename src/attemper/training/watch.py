"""Sees from the loss alone that a training has diverged or stalled, and says what to try."""

import math

from .options import Options

STALLED = 0.005


def diverged(step: int, steps: int, options: Options) -> str:
    assert options.lr is not None
    return (
        f"The loss was no longer finite at step {step} of {steps}, at temperature {options.temperature:g} with "
        f"lr = {options.lr:g} and lr_rule = {options.lr_rule!r}. "
        f"Try lr = {options.lr / 3:.2g}, clip = 1 or a smaller init_scale."
    )


def stalled(step: int, steps: int, loss: float, classes: int, options: Options) -> str | None:
    """None unless the mean loss is still that of guessing, ln C. A larger one is that of sure mistakes, and falls."""
    guessing = math.log(classes)
    if abs(loss - guessing) > STALLED * guessing:
        return None
    rule = "" if options.lr_rule == "times-temperature" else 'lr_rule = "times-temperature", '
    return (
        f"After {step} of {steps} steps the loss is {loss:.4f}, that of guessing among {classes} classes "
        f"(ln {classes} = {guessing:.4f}): the training stands still at temperature {options.temperature:g}. "
        f"Try {rule}a larger lr or init_scale, or a lower temperature, unless it starts late."
    )
