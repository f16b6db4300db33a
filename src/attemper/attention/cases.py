"""What a call of attention asks for, checked once and brought into one form."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Real

import torch
from torch import Tensor

from ..checks import choices, positive, share
from ..errors import ArgumentError
from .masks import not_seen

PRECISIONS = ("exact", "fast")
ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class Case:
    """Query (batch, heads, queries, d), key (batch, key heads, keys, d), value (batch, key heads, keys, d_v) or None.

    mask (bool, True where a key may be seen) and bias (added to the logits) have four dimensions that broadcast to
    (batch, heads, queries, keys); sinks has shape (heads,). `rows` is the shape of a row statistic for the caller.
    """

    query: Tensor
    key: Tensor
    value: Tensor | None
    mask: Tensor | None
    bias: Tensor | None
    sinks: Tensor | None
    is_causal: bool
    scale: float
    softcap: float | None
    dropout: float
    precision: str
    rows: torch.Size

    @property
    def heads(self) -> int:
        return self.query.shape[1]

    @property
    def queries(self) -> int:
        return self.query.shape[2]

    @property
    def keys(self) -> int:
        return self.key.shape[2]

    @property
    def computed_in(self) -> torch.dtype:
        """The type of its logits and statistics."""
        return torch.promote_types(self.query.dtype, torch.float32)

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All that a gradient may be wanted of."""
        return self.query, self.key, self.value, self.bias, self.sinks

    def without_tensors(self) -> "Case":
        """Its settings alone: what keeps them keeps no memory."""
        empty = self.query.new_empty(0)
        return replace(self, query=empty, key=empty, value=None, mask=None, bias=None, sinks=None)

    def with_tensors(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        bias: Tensor | None,
        sinks: Tensor | None,
        mask: Tensor | None,
    ) -> "Case":
        return replace(self, query=query, key=key, value=value, mask=mask, bias=bias, sinks=sinks)

    @property
    def is_biased(self) -> bool:
        """Whether anything but "seen" and "not seen" is added to the logits."""
        bias = self.bias
        return bias is not None and bool(((bias > not_seen(bias.dtype)) & (bias != 0)).any())

    def for_caller(self, inner: Tensor) -> Tensor:
        """(batch, heads, queries, ...) with the leading dimensions that the query came with."""
        return inner.reshape(*self.rows, *inner.shape[3:])

    def from_caller(self, outer: Tensor) -> Tensor:
        """A number a row, as the caller has it, as (batch, heads, queries)."""
        return outer.expand(self.rows).reshape(self.query.shape[:3])

    def lengths(self) -> Tensor:
        """(batch, heads, queries): how many keys each row sees."""
        device, own = self.query.device, self.query.shape[:3]
        last = torch.arange(1, self.queries + 1, device=device).clamp(max=self.keys)
        if self.mask is None and self.bias is None:
            return (last if self.is_causal else torch.full_like(last, self.keys)).expand(own)
        if self.bias is None and self.mask is not None and self.mask.shape[2] == 1 and self.keys:
            # padding: one row for all
            so_far = self.mask.expand(*self.mask.shape[:3], self.keys).cumsum(-1)[:, :, 0]
            return (so_far[..., last - 1] if self.is_causal else so_far[..., -1:]).expand(own)
        return torch.cat([self.visible(first, last).sum(-1) for first, last in self.row_ranges()], 2).expand(own)

    def visible(self, first: int, last: int) -> Tensor:
        """(batch or 1, heads or 1, last - first, keys): whether the rows first to last see each key."""
        device = self.query.device
        seen = torch.ones(1, 1, last - first, self.keys, dtype=torch.bool, device=device)
        if self.is_causal:
            seen = seen.tril(first)
        if self.mask is not None:
            seen = seen & rows_of(self.mask, first, last)
        if self.bias is not None:
            seen = seen & (rows_of(self.bias, first, last) > not_seen(self.bias.dtype))
        return seen

    def row_ranges(self) -> Iterator[tuple[int, int]]:
        # a compiler would unroll the loop
        step = max(self.queries, 1) if torch.compiler.is_compiling() else ROWS_AT_ONCE
        for first in range(0, max(self.queries, 1), step):
            yield first, min(self.queries, first + step)


def rows_of(mask: Tensor, first: int, last: int) -> Tensor:
    """The rows first to last of a mask or bias, which may have one row for all."""
    return mask if mask.shape[2] == 1 else mask[:, :, first:last]


def asked(
    query: Tensor,
    key: Tensor,
    value: Tensor | None = None,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    precision: str = "exact",
    check: bool = False,
) -> Case:
    """The case that these arguments of `attention` ask for; what does not fit is refused by name."""
    given = {"query": query, "key": key} | ({} if value is None else {"value": value})
    for name, tensor in given.items():
        _check_tensor(name, tensor)
    given = _as_autocast_has_it(given)
    query, key, value = given["query"], given["key"], given.get("value")
    for name, tensor in given.items():
        _check_beside(name, tensor, query, key)
    heads, key_heads = (_count(tensor) for tensor in (query, key))
    if heads != key_heads and not (enable_gqa and key_heads and heads % key_heads == 0):
        accepted = f"{heads} heads like the query's, or with enable_gqa=True a number that divides it,"
        raise ArgumentError("key", f"{key_heads} heads", accepted)
    if value is not None and _count(value) != key_heads:
        raise ArgumentError("value", f"{_count(value)} heads", f"{key_heads} heads like the key's")
    lead = _common_lead(given)
    query, key = (_four(tensor, lead) for tensor in (query, key))
    value = None if value is None else _four(value, lead)
    rows = torch.Size((*lead, *given["query"].shape[max(-3, -given["query"].ndim) : -1]))
    mask, bias = _mask_and_bias(attn_mask, query, key, lead)
    if precision not in PRECISIONS:
        raise ArgumentError("precision", precision, choices(map(repr, PRECISIONS)))
    if sinks is not None:
        _check_sinks(sinks, heads, query.device)
    if softcap is not None:
        softcap = positive("softcap", softcap)
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1]) if query.shape[-1] else 1.0
    elif isinstance(scale, bool) or not isinstance(scale, Real) or not math.isfinite(scale):
        raise ArgumentError("scale", scale, "a finite number")
    if check:
        _check_values({**given, "attn_mask": bias, "sinks": sinks})
    return Case(
        query,
        key,
        value,
        mask,
        bias,
        sinks,
        bool(is_causal),
        float(scale),
        softcap,
        share("dropout_p", dropout_p),
        precision,
        rows,
    )


def _check_tensor(name: str, tensor: object) -> None:
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise ArgumentError(name, getattr(tensor, "dtype", tensor), "a tensor of floating-point numbers")
    if tensor.is_nested:
        raise ArgumentError(name, "a nested tensor", "a padded tensor with an attn_mask")
    if tensor.ndim < 2:
        raise ArgumentError(name, tuple(tensor.shape), "(..., heads, length, head dimension)")


def _as_autocast_has_it(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Autocast gives torch's own attention its inputs in the type it names."""
    device = given["query"].device.type
    if not torch.is_autocast_enabled(device):
        return given
    dtype = torch.get_autocast_dtype(device)
    return {name: t if t.dtype == torch.float64 else t.to(dtype) for name, t in given.items()}


def _check_beside(name: str, tensor: Tensor, query: Tensor, key: Tensor) -> None:
    if tensor.dtype != query.dtype:
        raise ArgumentError(name, tensor.dtype, f"the query's {query.dtype}")
    if tensor.device != query.device:
        raise ArgumentError(name, tensor.device, f"the query's device, {query.device},")
    if min(tensor.ndim, 3) != min(query.ndim, 3):
        raise ArgumentError(name, tuple(tensor.shape), f"as many dimensions as the query's, {query.ndim},")
    if name == "key" and tensor.shape[-1] != query.shape[-1]:
        raise ArgumentError(name, tuple(tensor.shape), f"the query's head dimension, {query.shape[-1]},")
    if name == "value" and tensor.shape[-2] != key.shape[-2]:
        raise ArgumentError(name, tuple(tensor.shape), f"the key's length, {key.shape[-2]},")


def _count(tensor: Tensor) -> int:
    """Of heads."""
    return tensor.shape[-3] if tensor.ndim > 2 else 1


def _common_lead(given: dict[str, Tensor]) -> torch.Size:
    leads = {name: tensor.shape[:-3] for name, tensor in given.items()}
    if len(set(leads.values())) == 1:
        return leads["query"]
    try:
        return torch.Size(torch.broadcast_shapes(*leads.values()))  # type: ignore[no-untyped-call]
    except RuntimeError:
        came = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in given.items())
        raise ArgumentError("query, key, value", came, "leading dimensions that broadcast") from None


def _four(tensor: Tensor, lead: torch.Size) -> Tensor:
    """As (batch, heads, length, dimension)."""
    if tensor.ndim == 4 and tensor.shape[:1] == lead:
        return tensor
    inner = tensor.shape[-3:] if tensor.ndim > 2 else (1, *tensor.shape)
    return tensor.expand(*lead, *tensor.shape[-3:]).reshape(math.prod(lead), *inner)


def _mask_and_bias(
    given: Tensor | None, query: Tensor, key: Tensor, lead: torch.Size
) -> tuple[Tensor | None, Tensor | None]:
    if given is None:
        return None, None
    if not isinstance(given, Tensor) or not (given.dtype == torch.bool or given.is_floating_point()):
        raise ArgumentError("attn_mask", getattr(given, "dtype", given), "a tensor of bool or floating-point numbers")
    if given.device != query.device:
        raise ArgumentError("attn_mask", given.device, f"the query's device, {query.device},")
    inner = (query.shape[1], query.shape[2], key.shape[2])
    full = (*lead, *inner)
    padded = given.reshape((1,) * (len(full) - given.ndim) + given.shape)
    if padded.ndim != len(full) or any(m not in (1, f) for m, f in zip(padded.shape, full, strict=True)):
        raise ArgumentError("attn_mask", tuple(given.shape), f"a shape that broadcasts to {full}")
    if len(lead) != 1:
        own = padded.shape[: len(lead)]
        batch = 1 if math.prod(own) == 1 else math.prod(lead)
        padded = (padded if batch == 1 else padded.expand(*lead, *padded.shape[len(lead) :])).reshape(
            batch, *padded.shape[len(lead) :]
        )
    return (padded, None) if given.dtype == torch.bool else (None, padded)


def _check_sinks(sinks: Tensor, heads: int, device: torch.device) -> None:
    if not isinstance(sinks, Tensor) or not sinks.is_floating_point():
        raise ArgumentError("sinks", getattr(sinks, "dtype", sinks), "a tensor of floating-point numbers")
    if sinks.shape != (heads,) or sinks.device != device:
        came = f"{tuple(sinks.shape)} on {sinks.device}"
        raise ArgumentError("sinks", came, f"shape ({heads},), a number a head, on {device},")


def _check_values(given: dict[str, Tensor | None]) -> None:
    for name, tensor in given.items():
        if tensor is None:
            continue
        wrong = ~tensor.isfinite()
        if name == "attn_mask":
            wrong &= tensor != -torch.inf
        if bool(wrong.any()):
            place = tuple(wrong.nonzero()[0].tolist())
            accepted = "finite numbers" + (" and -inf" if name == "attn_mask" else "")
            raise ArgumentError(name, f"{tensor[place].item()} at {place}", f"a tensor of {accepted}")
