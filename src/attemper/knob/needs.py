"""What a policy reads of rows, and what it gives for them: checked where it is asked."""

from collections.abc import Iterator

from torch import Tensor

from ..checks import choices
from ..errors import ArgumentError
from .policies import Policy, read
from .rows import RowStatistics

FIELDS = ("entropy", "logsumexp", "mean_logit", "variance", "length", "max_logit", "min_logit", "sorted_logits", "at")


def needs_of(policy: Policy, layer: int | None = None) -> frozenset[str]:
    """The fields of RowStatistics that a policy reads, of the heads of one layer where it tells layers apart."""
    check_policy(policy)
    at_layer = getattr(policy, "needs_at", None)
    needs = frozenset(policy.needs if at_layer is None else at_layer(layer))
    unknown = sorted(needs.difference(FIELDS))
    if unknown:
        raise ArgumentError(f"needs of {policy!r}", unknown, f"fields of RowStatistics ({choices(FIELDS)})")
    return needs


def check_policy(policy: object) -> None:
    if isinstance(policy, type) or not callable(getattr(policy, "inverse_temperature", None)):
        raise ArgumentError("policy", policy, "a policy, such as at.Adaptive() or at.Constant(0.9), or None")
    if not isinstance(getattr(policy, "needs", None), tuple | list | set | frozenset):
        raise ArgumentError("policy", policy, "a policy whose `needs` names the fields of RowStatistics it reads")


def check_layers(policy: object, count: int) -> None:
    """Refuses a policy that names an attention module which a model of `count` has not."""
    named = [layer for layer, _ in _named_by(policy)]
    if named and max(named) >= count:
        raise ArgumentError("policy", f"one for layer {max(named)}", f"a layer from 0 to {count - 1} of this model")


def check_heads(policy: object, layer: int | None, count: int) -> None:
    """Refuses a policy that names a head which a layer of `count` has not."""
    named = [head for of, head in _named_by(policy) if head is not None and layer in (None, of)]
    if named and max(named) >= count:
        raise ArgumentError("policy", f"one for head {max(named)}", f"a head from 0 to {count - 1} of this layer")


def _named_by(policy: object) -> Iterator[tuple[int, int | None]]:
    """The (layer, head) that a PerHead names, those of tables within it too."""
    from .per_head import PerHead

    if isinstance(policy, PerHead):
        yield from policy.policies
        for inner in (*policy.policies.values(), policy.default):
            yield from _named_by(inner)


def beta_of(policy: Policy, rows: RowStatistics) -> Tensor:
    """The policy's beta for each of the rows."""
    beta = policy.inverse_temperature(rows)
    if not isinstance(beta, Tensor) or not beta.is_floating_point():
        raise ArgumentError(f"inverse temperature of {policy!r}", beta, "a floating-point tensor")
    if beta.shape != rows.shape:
        try:
            beta = beta.expand(rows.shape)
        except RuntimeError:
            accepted = f"a number a row, shape {tuple(rows.shape)},"
            raise ArgumentError(f"inverse temperature of {policy!r}", tuple(beta.shape), accepted) from None
    if beta.numel() and (least := read(beta.detach().amin())) is not None and not least >= 0:
        raise ArgumentError(f"inverse temperature of {policy!r}", least, "a number from 0")
    return beta
