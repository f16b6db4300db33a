"""Attention whose temperature a policy sets, and the statistics it is set by."""

from torch import Tensor

from ..errors import AttemperError
from ..knob.needs import check_heads, needs_of
from ..knob.policies import Adaptive, Constant, Policy
from ..knob.rows import RowMoments, RowStatistics, Source
from .cases import Case, asked
from .routes import for_output, for_rows
from .stacks import tell, watched

PUBLISHED = Adaptive()


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    policy: Policy | None = PUBLISHED,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    detach: bool = False,
    precision: str = "exact",
    check: bool = False,
) -> Tensor:
    """Torch's `scaled_dot_product_attention` with an inverse temperature for every row, which `policy` chooses.

    query (..., heads, queries, d), key (..., key heads, keys, d), value (..., key heads, keys, d_v) give
    (..., heads, queries, d_v). attn_mask broadcasts to (..., heads, queries, keys): bool, True where a key may be
    seen, or numbers that are added to the logits; it may stand beside is_causal. A row's logits are
    softcap * tanh(scale * q.k / softcap) + attn_mask, `sinks` (heads,) adds one entry without a value; beta
    multiplies all of them. A row that sees nothing gives 0.

    policy: the published `Adaptive()` unless told; None is beta = 1. It is asked again in the backward pass. Gradients
    flow through the temperature too; detach=True stops them there. precision="fast" rounds the logits of bfloat16 input
    to bfloat16 (up to 0.04 nats off at logits of standard deviation 3). check=True refuses NaN and infinite input by
    name.

    >>> import torch
    >>> query, key, value = torch.zeros(3, 1, 2, 5, 8)
    >>> attention(query, key, value, is_causal=True).shape
    torch.Size([1, 2, 5, 8])
    """
    case = asked(
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        scale,
        enable_gqa,
        softcap=softcap,
        sinks=sinks,
        precision=precision,
        check=check,
    )
    output, rows = tempered(case, policy, detach=detach, measure=watched())
    if rows is not None:
        tell(rows)
    return output


def attention_statistics(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    precision: str = "exact",
    check: bool = False,
) -> RowStatistics:
    """Entropy, logsumexp, length and more of every row of attention; arguments as in `attention`.

    Each field has the shape (..., heads, queries), is computed when first asked for and carries gradients.

    >>> import torch
    >>> query, key = torch.zeros(2, 1, 2, 5, 8)
    >>> attention_statistics(query, key, is_causal=True).entropy[0, 0].exp()
    tensor([1., 2., 3., 4., 5.])
    """
    case = asked(
        query,
        key,
        None,
        attn_mask,
        0.0,
        is_causal,
        scale,
        enable_gqa,
        softcap=softcap,
        sinks=sinks,
        precision=precision,
        check=check,
    )
    source = for_rows(case).rows(case)
    return RowStatistics(source if case.rows == source.shape else AsCalled(source, case))


def tempered(
    case: Case, policy: Policy | None, *, detach: bool = False, layer: int | None = None, measure: bool = False
) -> tuple[Tensor, RowStatistics | None]:
    """The output as the caller's query is shaped and, where `measure` asks for them, the statistics of the rows as they
    were used: under the policy's beta, and of shape (batch, heads, queries)."""
    if type(policy) is Constant and policy.temperature == 1:
        policy = None
    needs = frozenset() if policy is None else needs_of(policy, layer)
    check_heads(policy, layer, case.heads)
    route = for_output(case, policy, needs, measure)
    output, *measured = route.tempered(case, policy, detach, layer, measure)
    used = RowStatistics(Measured(case, route.NAME, *measured)) if measure else None
    return case.for_caller(output), used


class Measured:
    """Rows whose statistics are known already."""

    def __init__(
        self, case: Case, route: str, entropy: Tensor, logsumexp: Tensor, mean: Tensor, *extremes: Tensor
    ) -> None:
        self.route = route
        self.shape, self.dtype, self.device = entropy.shape, entropy.dtype, entropy.device
        self._case, self._moments, self._extremes = case, RowMoments(entropy, logsumexp, mean), extremes

    @property
    def length(self) -> Tensor:
        return self._case.lengths()

    def moments(self, beta: Tensor | None, variance: bool) -> RowMoments:
        if beta is not None or variance:
            name = "variance" if beta is None else "at"
            raise AttemperError(
                f"{name}: of rows that were measured on the way only entropy, logsumexp, mean_logit, length"
                " and the extremes are known, at their own temperature"
            )
        return self._moments

    def extremes(self) -> tuple[Tensor, Tensor]:
        largest, smallest = self._extremes
        return largest, smallest

    def sorted_logits(self) -> Tensor:
        raise AttemperError("sorted_logits: rows that were measured on the way have no logits left")


class AsCalled:
    """Rows in the shape that the caller's query gives them."""

    def __init__(self, source: Source, case: Case) -> None:
        self.route, self.shape, self.dtype, self.device = source.route, case.rows, source.dtype, source.device
        self._source, self._case = source, case

    @property
    def length(self) -> Tensor:
        return self._case.for_caller(self._source.length)

    def moments(self, beta: Tensor | None, variance: bool) -> RowMoments:
        found = self._source.moments(None if beta is None else self._case.from_caller(beta), variance)
        return RowMoments(*(None if each is None else self._case.for_caller(each) for each in found))  # type: ignore[arg-type]

    def extremes(self) -> tuple[Tensor, Tensor]:
        largest, smallest = self._source.extremes()
        return self._case.for_caller(largest), self._case.for_caller(smallest)

    def sorted_logits(self) -> Tensor:
        return self._case.for_caller(self._source.sorted_logits())
