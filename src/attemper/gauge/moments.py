"""Mean and covariance of a stream, from sums."""

from typing import Any

import torch
from torch import Tensor

from ..checks import whole
from ..errors import ArgumentError, DataError


class Moments:
    """Count, mean and covariance of rows of `width` numbers, from float64 sums; memory does not grow with the rows.

    `update` takes a batch (n, width), `merge` another Moments; both change this one and return it. Rows are shifted by
    the first batch's mean before they are multiplied, so that a large mean costs no digits. The covariance divides by
    the count.

    >>> import torch
    >>> Moments(2).update(torch.tensor([[0.0, 1.0], [2.0, 1.0]])).covariance
    tensor([[1., 0.],
            [0., 0.]], dtype=torch.float64)
    """

    def __init__(self, width: int) -> None:
        self.width, self.count = whole("width", width), 0
        self._shift = torch.zeros(width, dtype=torch.float64)
        self._sum = torch.zeros(width, dtype=torch.float64)
        self._products = torch.zeros(width, width, dtype=torch.float64)

    def update(self, batch: Tensor) -> "Moments":
        if not isinstance(batch, Tensor) or batch.ndim != 2 or batch.shape[1] != self.width:
            raise ArgumentError("batch", getattr(batch, "shape", batch), f"a tensor (n, {self.width})")
        if not len(batch):
            return self
        rows = float64(batch)
        if not bool(rows.isfinite().all()):
            raise DataError("batch: finite numbers are accepted, but NaN or an infinity came")
        if not self.count:
            self._to(rows.device)
            self._shift = rows.mean(0)
        rows = rows.to(self._sum.device) - self._shift
        self.count += len(rows)
        self._sum += rows.sum(0)
        self._products.addmm_(rows.T, rows)
        return self

    def merge(self, other: "Moments") -> "Moments":
        if not isinstance(other, Moments) or other.width != self.width:
            raise ArgumentError("other", other, f"Moments of width {self.width}")
        if not other.count:
            return self
        if not self.count:
            self.load_state_dict(other.state_dict())
            return self
        device = self._sum.device
        # (x - s) = (x - o) + (o - s): the other's sums about its shift o, moved to this one's s
        moved, total = (other._shift.to(device) - self._shift), other._sum.to(device)
        cross = torch.outer(total, moved)
        self.count += other.count
        self._sum += total + other.count * moved
        self._products += other._products.to(device) + cross + cross.T + other.count * torch.outer(moved, moved)
        return self

    def all_reduce(self) -> "Moments":
        """Makes this the moments of the rows of all processes of torch.distributed; in one process nothing changes."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return self
        count = torch.full((1, self.width), float(self.count), dtype=torch.float64, device=self._sum.device)
        ours = torch.cat([count, self._shift[None], self._sum[None], self._products])
        theirs = [torch.empty_like(ours) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(theirs, ours)
        self.count = 0
        for part in theirs:
            other = Moments(self.width)
            other.load_state_dict({"count": int(part[0, 0]), "shift": part[1], "sum": part[2], "products": part[3:]})
            self.merge(other)
        return self

    @property
    def mean(self) -> Tensor:
        """(width,), float64."""
        return self._shift + self._sum / self._counted()

    @property
    def covariance(self) -> Tensor:
        """(width, width), float64."""
        mean = self._sum / self._counted()
        return self._products / self.count - torch.outer(mean, mean)

    @property
    def second_moment(self) -> Tensor:
        """Mean of x x^T about zero: (width, width), float64."""
        return self.covariance + torch.outer(self.mean, self.mean)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "shift": self._shift, "sum": self._sum, "products": self._products}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        shape = (self.width, self.width)
        if tuple(state["products"].shape) != shape:
            raise ArgumentError("state", f"products of {tuple(state['products'].shape)}", f"products of {shape}")
        self.count = int(state["count"])
        self._shift, self._sum, self._products = (state[name].clone() for name in ("shift", "sum", "products"))

    def _counted(self) -> int:
        if not self.count:
            raise DataError("Moments: no row has been added yet")
        return self.count

    def _to(self, device: torch.device) -> None:
        self._shift, self._sum, self._products = (t.to(device) for t in (self._shift, self._sum, self._products))

    def __repr__(self) -> str:
        return f"Moments(width={self.width}, count={self.count})"


def float64(x: Tensor) -> Tensor:
    """x in float64, without its gradient; on the CPU where its device has no such numbers."""
    x = x.detach()
    return (x.cpu() if x.device.type == "mps" else x).double()
