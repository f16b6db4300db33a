"""What a watcher keeps of the calls of attention it sees: sums a head, whatever the length."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..knob.rows import RowStatistics
from .layers import Running

if TYPE_CHECKING:
    import pandas as pd

MEANS = ("length", "entropy", "normalised_entropy", "logit_spread", "largest_weight")


class Record:
    """A row per call and head in `to_frame()`; a call's rows of logits are summed when it runs, and not kept.

    Only rows that see a key count, and of these the ones that `choose(rows)` (a bool a row) takes. `names` are those of
    the modules that a call may come from.
    """

    def __init__(
        self,
        names: dict[nn.Module, str] | None = None,
        running: Running | None = None,
        choose: Callable[[RowStatistics], Tensor] | None = None,
    ) -> None:
        self._names, self._running, self._choose = names, running, choose
        self._calls: list[tuple[str | int | None, Tensor]] = []

    def take(self, rows: RowStatistics, module: nn.Module | None = None) -> None:
        """Adds a call whose rows have the shape (batch, heads, queries)."""
        self._calls.append((self._layer(module), _sums(rows, self._choose)))

    def __len__(self) -> int:
        """The number of calls."""
        return len(self._calls)

    def to_frame(self) -> "pd.DataFrame":
        """A DataFrame with a row per call and head.

        call: its number, in the order in which calls ran; layer: the name of the module it came from (missing where
        that is none of the model's) or, without a model, the number of the call; head; rows: how many are counted.
        The rest are means over these rows: length (keys that the row sees), entropy in nats, normalised_entropy
        (entropy / ln length, over the rows that see at least two keys), logit_spread (largest minus smallest logit),
        largest_weight. A mean over no rows is NaN.
        """
        import pandas as pd

        table: list[tuple[object, ...]] = []
        for call, (layer, sums) in enumerate(self._calls):
            for head, (rows, wide, *totals) in enumerate(sums.tolist()):
                counts = [wide if mean == "normalised_entropy" else rows for mean in MEANS]
                table.append((call, layer, head, int(rows), *map(_over, totals, counts)))
        return pd.DataFrame(table, columns=["call", "layer", "head", "rows", *MEANS])

    def _layer(self, module: nn.Module | None) -> str | int | None:
        if self._names is None:
            return len(self._calls)
        if (module is None or module not in self._names) and self._running is not None:
            module = self._running.innermost(self._names)
        return None if module is None else self._names.get(module)


def _sums(rows: RowStatistics, choose: Callable[[RowStatistics], Tensor] | None) -> Tensor:
    """(heads, 7) in float64: how many rows, how many of them with two keys, then the sums of MEANS."""
    length, entropy = rows.length, rows.entropy
    counted = length > 0
    if choose is not None:
        counted = counted & choose(rows)
    wide = counted & (length > 1)
    taken = [
        (torch.ones_like(entropy), counted),
        (torch.ones_like(entropy), wide),
        (length, counted),
        (entropy, counted),
        (entropy / length.log(), wide),
        (rows.max_logit - rows.min_logit, counted),
        ((rows.max_logit - rows.logsumexp).exp(), counted),
    ]
    return torch.stack([_float64(torch.where(which, values, 0)).sum((0, 2)) for values, which in taken], -1)


def _float64(x: Tensor) -> Tensor:
    """On the CPU where the device has no such numbers."""
    return (x.cpu() if x.device.type == "mps" else x).detach().double()


def _over(total: float, count: float) -> float:
    return total / count if count else float("nan")
