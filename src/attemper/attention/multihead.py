"""`F.multi_head_attention_forward` with our attention in it: the road of nn.MultiheadAttention and nn.Transformer."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import AttemperError
from ..knob.policies import Constant
from .active import perform, perform_on
from .cases import asked
from .stacks import innermost, watched

CALL = F.scaled_dot_product_attention
TORCHS = F.multi_head_attention_forward


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch's, under the policy in force."""
    entry = innermost()
    bare = attn_mask is None or (attn_mask.dtype == torch.bool and not is_causal)
    if bare and not dropout_p and entry is not None and type(entry.policy) is Constant and not watched():
        # what `perform` comes to, without the time that looking at the case takes: small models call often
        scale = (max(query.shape[-1], 1) ** -0.5 if scale is None else scale) / entry.policy.temperature
        return CALL(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
    # torch broadcasts a single head of keys without being told
    grouped = enable_gqa or (key.ndim > 2 and key.shape[-3] == 1)
    return perform(asked(query, key, value, attn_mask, dropout_p, is_causal, scale, grouped))


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    *others: Any,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """torch's, under the policy in force, its weights too.

    It is torch's own code, run with other names in its reach: patching torch.nn.functional would reach other threads.
    """

    def softmax(logits: Tensor, dim: int) -> Tensor:
        assert dim == -1
        return perform_on(logits.view(-1, num_heads, *logits.shape[1:])).flatten(0, 1)

    ours = {
        "scaled_dot_product_attention": scaled_dot_product_attention,
        "softmax": softmax,
    }
    if missing := {*ours, "has_torch_function"} - set(TORCHS.__code__.co_names):
        raise AttemperError(f"multi_head_attention_forward of torch {torch.__version__} no longer calls {missing}")
    result: tuple[Tensor, Tensor | None] = past_its_check(TORCHS, ours)(
        query, key, value, embed_dim_to_check, num_heads, *others, **options
    )
    return result


def past_its_check(function: Any, names: dict[str, Any] | None = None) -> Callable[..., Any]:
    """A function of torch's that does not ask again whether someone else answers the call, with `names` in reach."""
    never = {"has_torch_function": _never, "has_torch_function_unary": _never}
    within = {**function.__globals__, **never, **(names or {})}
    copy = FunctionType(function.__code__, within, None, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _never(_: object) -> bool:
    return False
