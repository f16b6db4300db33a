"""The attention that transformers calls by the name "attemper"."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from ..errors import ArgumentError, MissingExtraError
from ..knob.needs import check_policy
from ..knob.policies import Policy
from . import active
from .cases import Case, asked

NAME = "attemper"

# what changes the logits and is not in the mask, or asks for what is not there
REFUSED = {
    "cache": "no paged cache (a static or dynamic one, without continuous batching,)",
    "sinks": "one sink a head (s_aux)",
    "indices": "attention to all keys of the mask, not to an indexer's choice,",
    "block_indices": "attention to all keys of the mask, not to an indexer's choice,",
    "output_attentions": "output_attentions=False (at.watching measures the rows)",
}


@dataclass
class Own:
    """What a switched model's modules carry, out of sight of state_dict: their policy and their number.

    None is the policy in force.
    """

    policy: Policy | None
    layer: int | None


class _Registered:
    policy: Policy | None = None


# told of every call before it is performed
listeners: list[Callable[[nn.Module, Case], None]] = []


def register(policy: Policy | None = None) -> None:
    """Make `attn_implementation="attemper"` known to transformers; once or often is the same.

    `policy` is that of every model without its own; None is plain softmax, open to `at.tempering` and `at.watching`.
    """
    if policy is not None:
        check_policy(policy)
    make_known()
    _Registered.policy = policy


def registered() -> Policy | None:
    """The policy of models without their own."""
    return _Registered.policy


def make_known() -> None:
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise MissingExtraError("transformers", "at.huggingface") from error
    AttentionInterface.register(NAME, attend)
    # without it transformers makes no mask at all, and causality is lost
    AttentionMaskInterface.register(NAME, mask)


def mask(*args: Any, config: Any = None, **kwargs: Any) -> Tensor | None:
    """transformers' own boolean mask, or None where `is_causal` says it all."""
    from transformers.masking_utils import sdpa_mask

    # such layers drop queries afterwards: without a mask the rest would count as the first ones
    if getattr(config, "num_kv_shared_layers", 0):
        kwargs["allow_is_causal_skip"] = False
    return sdpa_mask(*args, **kwargs)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Query (batch, heads, queries, d), key and value (batch, key heads, keys, d) -> (batch, queries, heads, d_v)."""
    for name, accepted in REFUSED.items():
        if others.get(name) is not None and others[name] is not False:
            raise ArgumentError(name, _sort(others[name]), accepted)
    policy, layer = _Registered.policy, None
    own: Own | None = getattr(module, "_attemper", None)
    if own is not None:
        policy, layer = own.policy, own.layer
    if layer is None and policy is not None and active.needs_layer(policy):
        accepted = "one policy for all layers (layers are the modules of a tempered model that are named attention)"
        raise ArgumentError("policy", f"{type(policy).__name__} in a call from {type(module).__name__}", accepted)
    queries = query.shape[2]
    causal = queries > 1 and attention_mask is None and (_is_causal(module) if is_causal is None else is_causal)
    same = None
    if cu_seq_lens_q is not None or cu_seq_lens_k is not None:
        same = _same_sequence(query, key, cu_seq_lens_q, cu_seq_lens_k)
    elif causal:
        _refuse_unmasked_packing(others.get("position_ids"))
    if causal and key.shape[2] > queries:
        # the rest of an empty static cache
        key, value = key[:, :, :queries], value[:, :, :queries]
        position_bias = None if position_bias is None else position_bias[..., :queries]
    if position_bias is not None:
        attention_mask = _with_bias(attention_mask, position_bias)
    if same is not None:
        attention_mask = same if attention_mask is None else _both(attention_mask, same)
    case = asked(
        query,
        key,
        value,
        attention_mask,
        dropout,
        causal,
        scaling,
        enable_gqa=True,
        softcap=softcap,
        sinks=None if s_aux is None else s_aux.reshape(-1),
    )
    for tell in listeners:
        tell(module, case)
    return active.perform(case, policy, module, layer).transpose(1, 2).contiguous(), None


def _is_causal(module: nn.Module) -> bool:
    return bool(getattr(module, "is_causal", True))


def _with_bias(mask: Tensor | None, bias: Tensor) -> Tensor:
    if mask is None:
        return bias
    return torch.where(mask, bias, -torch.inf) if mask.dtype == torch.bool else mask + bias


def _both(mask: Tensor, seen: Tensor) -> Tensor:
    return mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, -torch.inf)


def _same_sequence(query: Tensor, key: Tensor, starts_q: Tensor | None, starts_k: Tensor | None) -> Tensor:
    """(1, 1, queries, keys): whether both stand in the same one of the sequences packed into a row."""
    starts = [starts for starts in (starts_q, starts_k) if starts is not None]
    if query.shape[0] != 1 or query.shape[2] != key.shape[2]:
        came = f"query {tuple(query.shape)} and key {tuple(key.shape)}"
        raise ArgumentError("cu_seq_lens_q", came, "self-attention without a cache over one packed row")
    place = torch.arange(key.shape[2], device=key.device)
    rows, columns = (torch.bucketize(place, s[1:].to(place.dtype), right=True) for s in (starts[0], starts[-1]))
    return (rows[:, None] == columns)[None, None]


class _Checked:
    positions: ref[Tensor] | None = None
    version = 0


def _refuse_unmasked_packing(positions: object) -> None:
    """Some models (gpt-oss) make no mask of positions that start again; here there is none, so it was not made."""
    if not isinstance(positions, Tensor) or positions.ndim != 2:
        return
    accepted = "packed sequences with cu_seq_lens_q and cu_seq_lens_k too, or a mask of four dimensions,"
    if torch.compiler.is_compiling():
        message = f"position_ids: {accepted} are accepted, but positions that start again in a row came without"
        torch._assert_async((positions[:, 1:] != 0).all(), message)
        return
    version = -1 if positions.is_inference() else positions._version
    if _Checked.positions is not None and _Checked.positions() is positions and _Checked.version == version >= 0:
        # the layer before had the same ones, and reading them makes a GPU wait
        return
    if bool((positions[:, 1:] == 0).any()):
        raise ArgumentError("position_ids", "positions that start again in a row and no mask that parts them", accepted)
    _Checked.positions, _Checked.version = ref(positions), version


def _sort(value: object) -> object:
    return value if isinstance(value, bool) else type(value).__name__
