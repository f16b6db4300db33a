"""What a policy may ask of rows of logits, computed when first asked for."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..errors import ArgumentError
from .softmax import check_logits, widened

# stands for -inf where a product with a probability of 0 must not be NaN
MASKED = -1e30


class RowMoments(NamedTuple):
    """Of each row, over its visible entries and its sink: all of one shape."""

    entropy: Tensor
    logsumexp: Tensor
    mean: Tensor
    variance: Tensor | None = None


class Source(Protocol):
    """Where rows of logits come from: a tensor that holds them, or a query and a key."""

    @property
    def route(self) -> str: ...
    @property
    def shape(self) -> torch.Size: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def length(self) -> Tensor: ...
    def moments(self, beta: Tensor | None, variance: bool) -> RowMoments: ...
    def extremes(self) -> tuple[Tensor, Tensor]: ...
    def sorted_logits(self) -> Tensor: ...


class RowStatistics:
    """Rows of logits as a policy sees them; every field has the shape of the rows and waits until it is asked for.

    entropy, logsumexp, mean_logit and variance (of the logits, under their own softmax) come from one pass;
    length counts the visible entries, without the sink; max_logit and min_logit. A row that sees nothing has
    entropy 0, logsumexp -inf, mean 0, length 0, maximum -inf and minimum inf. `route` tells how it is computed.
    In attention the rows have the shape (..., heads, queries), `first_head` is the number of the first of these heads
    and `layer` that of the attention module, where it is known.

    >>> rows = RowStatistics.from_logits(torch.tensor([[0.0, 0.0, 0.0, -torch.inf]]))
    >>> rows.entropy.exp(), rows.length
    (tensor([3.]), tensor([3]))
    """

    def __init__(
        self, source: Source, beta: Tensor | None = None, layer: int | None = None, first_head: int = 0
    ) -> None:
        self._source, self._beta = source, beta
        self.layer, self.first_head = layer, first_head
        # by mode: what was computed without gradients does not serve who wants them
        self._kept_moments: dict[tuple[bool, bool], RowMoments] = {}
        self._kept_extremes: dict[tuple[bool, bool], tuple[Tensor, Tensor]] = {}
        self._kept_length: dict[tuple[bool, bool], Tensor] = {}

    @classmethod
    def from_logits(cls, logits: Tensor, dim: int = -1) -> "RowStatistics":
        """Rows along `dim` of logits, where -inf marks an entry that is not there."""
        return cls(HeldLogits.of(rows_last(logits, dim)))

    @property
    def route(self) -> str:
        return self._source.route

    @property
    def shape(self) -> torch.Size:
        return self._source.shape

    @property
    def dtype(self) -> torch.dtype:
        """Of their statistics and of a beta for them: float32 or float64."""
        return self._source.dtype

    @property
    def device(self) -> torch.device:
        return self._source.device

    def at(self, beta: Tensor | float) -> "RowStatistics":
        """The same rows with their logits times `beta`, which broadcasts to the rows."""
        beta = torch.as_tensor(beta, dtype=self.dtype, device=self.device)
        try:
            beta = torch.broadcast_to(beta, self.shape)
        except RuntimeError:
            raise ArgumentError("beta", tuple(beta.shape), f"a shape that broadcasts to {tuple(self.shape)}") from None
        return RowStatistics(
            self._source, beta if self._beta is None else self._beta * beta, self.layer, self.first_head
        )

    @property
    def length(self) -> Tensor:
        mode = _mode()
        if mode not in self._kept_length:
            self._kept_length[mode] = self._source.length
        return self._kept_length[mode]

    @property
    def entropy(self) -> Tensor:
        return self._moments().entropy

    @property
    def logsumexp(self) -> Tensor:
        return self._moments().logsumexp

    @property
    def mean_logit(self) -> Tensor:
        return self._moments().mean

    @property
    def variance(self) -> Tensor:
        variance = self._moments(variance=True).variance
        assert variance is not None
        return variance

    @property
    def max_logit(self) -> Tensor:
        return self._extremes()[0]

    @property
    def min_logit(self) -> Tensor:
        return self._extremes()[1]

    def sorted_logits(self) -> Tensor:
        """(*rows, n): the largest first; -inf stands behind the visible ones. It is as large as the logits."""
        values = self._source.sorted_logits()
        return values if self._beta is None else times(values, self._beta.unsqueeze(-1))

    def _moments(self, variance: bool = False) -> RowMoments:
        mode = _mode()
        kept = self._kept_moments.get(mode)
        if kept is None or (variance and kept.variance is None):
            kept = self._kept_moments[mode] = self._source.moments(self._beta, variance)
        return kept

    def _extremes(self) -> tuple[Tensor, Tensor]:
        mode = _mode()
        if mode not in self._kept_extremes:
            ends = self._source.extremes()
            if self._beta is not None:
                ends = times(ends[0], self._beta), times(ends[1], self._beta)
            self._kept_extremes[mode] = ends
        return self._kept_extremes[mode]


def _mode() -> tuple[bool, bool]:
    # a compiler knows no inference mode
    return torch.is_grad_enabled(), not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()


def rows_last(logits: Tensor, dim: int) -> Tensor:
    """Logits whose rows along `dim` were brought to the end."""
    check_logits(logits)
    if not isinstance(dim, int) or not -logits.ndim <= dim < logits.ndim:
        raise ArgumentError("dim", dim, f"a dimension of logits, which has {logits.ndim},")
    if logits.shape[dim] == 0:
        raise ArgumentError("logits", tuple(logits.shape), "at least one entry a row")
    return logits.movedim(dim, -1)


class HeldLogits:
    """Rows of logits (..., n) that stand in memory, shifted by their largest: `below` the shifted, `top` the largest.

    `dead` are the rows that see nothing, `sink` is one more logit a row. What is in `scratch`, of the size of `below`,
    may be overwritten. All rows see the entries before `seen_before`.
    """

    route = "held"

    def __init__(
        self,
        below: Tensor,
        top: Tensor,
        dead: Tensor,
        sink: Tensor | None = None,
        *,
        scratch: Tensor | None = None,
        length: Tensor | None = None,
        seen_before: int = 0,
    ) -> None:
        self.below, self.top, self.dead, self.sink, self.scratch = below, top, dead, sink, scratch
        self.seen_before = seen_before
        self._length = length

    @classmethod
    def of(cls, logits: Tensor, sink: Tensor | None = None) -> "HeldLogits":
        wide = widened(logits)
        top = wide.detach().amax(-1)
        dead = top == -torch.inf
        top = top.masked_fill(dead, 0)
        return cls((wide - top.unsqueeze(-1)).clamp(min=MASKED), top, dead, sink)

    @property
    def shape(self) -> torch.Size:
        return self.top.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.top.dtype

    @property
    def device(self) -> torch.device:
        return self.top.device

    @property
    def length(self) -> Tensor:
        return self.seen.sum(-1) if self._length is None else self._length

    @property
    def seen(self) -> Tensor:
        return self.below > MASKED / 2

    def scaled(self, beta: Tensor | None, last: bool = False) -> Tensor:
        """beta * logits, shifted; in the place of the logits if that is the `last` to be done with them."""
        if beta is None:
            return self.below
        factor = bounded(beta).unsqueeze(-1)
        return self.below.mul_(factor) if last and self.scratch is not None else self.below * factor

    def weights(self, beta: Tensor | None) -> Tensor:
        """softmax(beta * logits) without the sink; a row that sees nothing gets zeros."""
        return torch.softmax(self.scaled(beta), -1).masked_fill(self.dead.unsqueeze(-1), 0)

    def moments(self, beta: Tensor | None, variance: bool) -> RowMoments:
        below = self.scaled(beta)
        return self.moments_under(softmax_into(self.scratch, below), below, beta, variance)

    def moments_under(self, weights: Tensor, below: Tensor, beta: Tensor | None, variance: bool) -> RowMoments:
        """The moments, given scaled(beta) and its softmax, which is used up."""
        # the largest weight is 1 / total: cheaper than another pass of exponentials, but not in its gradient
        log_total = torch.logsumexp(below, -1) if below.requires_grad else -weights.amax(-1).log()
        products = weights * below if below.requires_grad else weights.mul_(below)
        mean = products.sum(-1)
        if variance and below.requires_grad:
            # the square of MASKED, in a gradient, would be infinite
            below = torch.where(weights == 0, 0, below)
            products = weights * below
        spread = (products * below).sum(-1) - mean.square() if variance else None
        top = self.top if beta is None else self.top * beta
        moments = RowMoments(
            (log_total - mean).clamp(min=0).masked_fill(self.dead, 0),
            (log_total + top).masked_fill(self.dead, -torch.inf),
            (mean + top).masked_fill(self.dead, 0),
            None if spread is None else spread.clamp(min=0).masked_fill(self.dead, 0),
        )
        if self.sink is None:
            return moments
        return with_sink(moments, self.sink if beta is None else times(self.sink, beta))

    def extremes(self) -> tuple[Tensor, Tensor]:
        largest = self.below.amax(-1) + self.top if self.below.requires_grad else self.top
        all_see, others = self.below[..., : self.seen_before], self.below[..., self.seen_before :]
        smallest = [all_see.amin(-1)] if all_see.shape[-1] else []
        if others.shape[-1]:
            smallest.append(torch.where(others > MASKED / 2, others, torch.inf).amin(-1))
        lowest = torch.stack(smallest).amin(0) + self.top
        largest, lowest = largest.masked_fill(self.dead, -torch.inf), lowest.masked_fill(self.dead, torch.inf)
        if self.sink is None:
            return largest, lowest
        sink = self.sink.masked_fill(self.sink == -torch.inf, torch.inf)
        return torch.maximum(largest, self.sink), torch.minimum(lowest, sink)

    def sorted_logits(self) -> Tensor:
        logits = (self.below + self.top.unsqueeze(-1)).masked_fill(~self.seen, -torch.inf)
        if self.sink is not None:
            logits = torch.cat([logits, self.sink.expand(self.shape).unsqueeze(-1)], -1)
        return logits.sort(-1, descending=True).values


def softmax_into(scratch: Tensor | None, logits: Tensor) -> Tensor:
    """softmax(logits) along rows, in `scratch` where there is one and no gradient is wanted."""
    if scratch is None or logits.requires_grad:
        return torch.softmax(logits, -1)
    return torch.softmax(logits, -1, out=scratch)


def with_sink(moments: RowMoments, sink: Tensor) -> RowMoments:
    """The moments of the same rows with one more entry."""
    entropy, keys, mean, variance = moments
    # 0 * -inf is NaN: a sink of -inf, like a row that sees nothing, leaves before the products
    absent, dead = sink == -torch.inf, keys == -torch.inf
    sink = sink.masked_fill(absent, 0)
    total = torch.where(absent, keys, torch.logaddexp(keys, sink))
    log_share, log_rest = (keys - total).masked_fill(dead, 0), (sink - total).masked_fill(absent, 0)
    share, rest = log_share.exp().masked_fill(dead, 0), log_rest.exp().masked_fill(absent, 0)
    entropy = share * (entropy - log_share) - rest * log_rest
    middle = share * mean + rest * sink
    if variance is not None:
        variance = share * (variance + (mean - middle).square()) + rest * (sink - middle).square()
    return RowMoments(entropy.clamp(min=0), total, middle, variance)


def bounded(beta: Tensor) -> Tensor:
    """Above 0, where every visible entry counts the same but a masked one still nothing; and too small to overflow."""
    within = beta.clamp(1e-20, 1e8 if beta.dtype == torch.float32 else 1e200)
    # the gradient of what was given: at 0 the clamp's own would be none
    return beta + (within - beta).detach() if beta.requires_grad else within


def times(values: Tensor, beta: Tensor) -> Tensor:
    """-inf and inf stay what they are."""
    infinite = values.isinf()
    # 0 * -inf would be beta's gradient
    return torch.where(infinite, values, values.masked_fill(infinite, 0) * beta)
