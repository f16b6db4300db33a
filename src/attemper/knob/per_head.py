"""A policy of its own for every head."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from ..checks import whole
from ..errors import ArgumentError
from .needs import check_policy
from .policies import Constant, Policy
from .rows import RowStatistics

Key = tuple[int, int | None]


class PerHead:
    """{(layer, head): policy, (layer, None): policy}: a head's own policy, else its layer's, else `default`, else 1.

    A layer is the index of the attention module in `named_modules` order; rows that come without one, from a call
    outside a model, are accepted where the table names one layer at most. A layer of constants alone costs no
    statistics; elsewhere each policy of a layer is asked about all its heads.

    >>> policy = PerHead({(0, None): Constant(0.5), (0, 2): Constant(0.25)})
    >>> policy.inverse_temperature(RowStatistics.from_logits(torch.zeros(3, 1, 7))).flatten()
    tensor([2., 2., 4.])
    """

    def __init__(self, policies: Mapping[Key, Policy], default: Policy | None = None) -> None:
        if not isinstance(policies, Mapping):
            raise ArgumentError("policies", policies, "a dict {(layer, head): policy, (layer, None): policy}")
        table = {_key(key): _policy(f"policies[{key}]", policy) for key, policy in policies.items()}
        self._table = table
        self.default = None if default is None else _policy("default", default)

    @property
    def policies(self) -> Mapping[Key, Policy]:
        return MappingProxyType(self._table)

    @property
    def needs(self) -> tuple[str, ...]:
        """`layer` where the table names any, and what its policies need."""
        all_of_them = [policy.needs for policy in (*self._table.values(), self.default) if policy is not None]
        return _united([("layer",) if self._table else (), *all_of_them])

    def needs_at(self, layer: int | None) -> tuple[str, ...]:
        """What the policies of a layer need."""
        layer = self._known(layer)
        policies = [policy for (of, _), policy in self._table.items() if of == layer]
        if (layer, None) not in self._table and self.default is not None:
            policies.append(self.default)
        return _united(p.needs_at(layer) if isinstance(p, PerHead) else p.needs for p in policies)

    def inverse_temperature(self, rows: RowStatistics) -> Tensor:
        layer = self._known(rows.layer)
        rest = self._table.get((layer, None), self.default) if layer is not None else self.default
        named = {head: policy for (of, head), policy in self._table.items() if of == layer and head is not None}
        if not named:
            return _asked(rest, rows)
        if len(rows.shape) < 2:
            raise ArgumentError("rows", tuple(rows.shape), "(..., heads, queries), for a policy a head,")
        heads = [named.get(head, rest) for head in range(rows.first_head, rows.first_head + rows.shape[-2])]
        constants = [_constant(policy) for policy in heads]
        if None not in constants:
            betas = torch.tensor(constants, dtype=rows.dtype, device=rows.device)
            return betas.unsqueeze(-1).expand(rows.shape)
        return self._mixed(heads, rows)

    def _mixed(self, heads: list[Policy | None], rows: RowStatistics) -> Tensor:
        distinct = {id(policy): policy for policy in heads}
        betas: Tensor | None = None
        for name, policy in distinct.items():
            beta = _asked(policy, rows)
            mine = torch.tensor([id(head) == name for head in heads], device=rows.device).unsqueeze(-1)
            betas = beta if betas is None else torch.where(mine, beta, betas)
        assert betas is not None
        return betas

    def _known(self, layer: int | None) -> int | None:
        """The layer that rows belong to."""
        layers = {of for of, _ in self._table}
        if layer is not None or not layers:
            return layer
        if len(layers) > 1:
            accepted = (
                f"for a PerHead of {len(layers)} layers the index of one, which a model under tempering(...) gives,"
            )
            raise ArgumentError("layer", None, accepted)
        return next(iter(layers))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PerHead):
            return NotImplemented
        return self._table == other._table and self.default == other.default

    def __hash__(self) -> int:
        return hash((PerHead, frozenset(self._table.items()), self.default))

    def __repr__(self) -> str:
        return f"PerHead({self._table}" + (")" if self.default is None else f", default={self.default})")


def _key(key: object) -> Key:
    if not isinstance(key, tuple) or len(key) != 2:
        raise ArgumentError("policies", key, "a key (layer, head) or (layer, None)")
    layer, head = key
    return whole(f"layer of {key}", layer, least=0), None if head is None else whole(f"head of {key}", head, least=0)


def _policy(name: str, policy: Policy) -> Policy:
    try:
        check_policy(policy)
    except ArgumentError:
        raise ArgumentError(name, policy, "a policy such as attemper.Constant(0.9)") from None
    return policy


def _united(needs: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Each name once, in the order in which they came."""
    return tuple(dict.fromkeys(name for names in needs for name in names))


def _asked(policy: Policy | None, rows: RowStatistics) -> Tensor:
    if policy is None:
        return torch.ones(rows.shape, dtype=rows.dtype, device=rows.device)
    return policy.inverse_temperature(rows)


def _constant(policy: Policy | None) -> float | None:
    """Its beta, where that is the same for all rows."""
    if policy is None:
        return 1.0
    return 1 / policy.temperature if type(policy) is Constant else None
