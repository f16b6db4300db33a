"""Cross-entropy at a temperature that is fixed, scheduled or learned."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..checks import share
from ..errors import ArgumentError, DataError
from .softmax import check_logits, check_temperature, shifted, widened


class Learned(nn.Module):
    """A temperature that is learned, as its logarithm: a module whose call gives it, a scalar tensor.

    >>> Learned(2.0)().item()
    2.0
    """

    def __init__(self, initial: float) -> None:
        super().__init__()
        check_temperature(initial, "initial")
        self.log_temperature = nn.Parameter(torch.tensor(math.log(initial)))

    def forward(self) -> Tensor:
        return self.log_temperature.exp()


class TemperedCrossEntropy(nn.Module):
    """Cross-entropy of logits / temperature: logits (n, classes, ...) and targets (n, ...) of class indices.

    temperature: a number; a schedule, called with `progress`, which the training loop sets; or `Learned(initial)`,
    whose parameter is then one of this module's. weight, label_smoothing, ignore_index and reduction are those of
    torch's `cross_entropy`. Half-precision logits are divided in float32.

    >>> import torch
    >>> TemperedCrossEntropy(temperature=1000.0)(torch.randn(8, 10), torch.zeros(8, dtype=torch.long)).round(decimals=2)
    tensor(2.3000)
    """

    weight: Tensor | None

    def __init__(
        self,
        temperature: float | Callable[[float], float] | Learned = 1.0,
        weight: Tensor | None = None,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        if not callable(temperature):
            check_temperature(temperature)
        if reduction not in ("mean", "sum", "none"):
            raise ArgumentError("reduction", reduction, "'mean', 'sum' or 'none'")
        if weight is not None and not (isinstance(weight, Tensor) and weight.is_floating_point() and weight.ndim == 1):
            raise ArgumentError("weight", weight, "a floating-point tensor (classes,)")
        self._temperature = temperature
        self.register_buffer("weight", weight)
        self.label_smoothing = share("label_smoothing", label_smoothing)
        self.ignore_index, self.reduction = ignore_index, reduction
        self.progress = 0.0

    @property
    def temperature(self) -> float | Tensor:
        """The temperature at the present `progress`."""
        if isinstance(self._temperature, Learned):
            return self._temperature.log_temperature.exp()
        if not callable(self._temperature):
            return self._temperature
        temperature = self._temperature(self.progress)
        check_temperature(temperature, f"temperature (the schedule at progress {self.progress:g})")
        return temperature

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        check_logits(logits)
        if not isinstance(target, Tensor) or target.dtype != torch.int64:
            raise ArgumentError("target", getattr(target, "dtype", target), "a tensor of int64 class indices")
        expected = logits.shape[:1] + logits.shape[2:] if logits.ndim > 1 else ()
        if target.shape != expected:
            raise ArgumentError("target", tuple(target.shape), f"shape {tuple(expected)}")
        classes = min(1, logits.ndim - 1)
        count = logits.shape[classes]
        if self.weight is not None and len(self.weight) != count:
            raise ArgumentError("weight", f"{len(self.weight)} of them", f"one for each of {count} classes")
        if not torch.compiler.is_compiling() and not target.is_cuda:
            self._check_labels(target, count)
        return functional.cross_entropy(
            self._tempered(logits, classes),
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )

    def _tempered(self, logits: Tensor, classes: int) -> Tensor:
        temperature = self.temperature
        if isinstance(temperature, float | int) and temperature >= 1:
            # cannot overflow, and cross_entropy shifts by itself
            return widened(logits) / temperature if temperature > 1 else widened(logits)
        return shifted(logits, temperature, classes)

    def _check_labels(self, target: Tensor, classes: int) -> None:
        """On the CPU alone: elsewhere the look would wait for the device, which refuses such labels by itself."""
        if not target.numel():
            return
        low, high = target.aminmax()
        if int(low) >= 0 and int(high) < classes:
            return
        wrong = target[((target < 0) | (target >= classes)) & (target != self.ignore_index)]
        if wrong.numel():
            raise DataError(f"target: labels from 0 to {classes - 1} are accepted, but {int(wrong.flatten()[0])} came")

    def extra_repr(self) -> str:
        return f"temperature={self._temperature}, label_smoothing={self.label_smoothing}, reduction={self.reduction!r}"
