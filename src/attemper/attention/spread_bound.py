"""How far apart the logits of a row can be: Prop. 3.1 of arXiv 2410.01104, from projections and the inputs they met."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .fold import ALONE, BY_HEAD, FIRST, NORMS, PROJECTIONS
from .layers import attention_modules

KEY_BESIDE = {"q_proj": "k_proj", "query": "key", "q_lin": "k_lin", "query_proj": "key_proj", "wq": "wk", "q": "k"}


@dataclass
class Projections:
    """What an attention module makes its queries and keys of, each (outputs, inputs), and the largest inputs seen."""

    scale: float | None
    query: Tensor
    key: Tensor
    sources: tuple[nn.Module, nn.Module]
    largest: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def bounds(self, heads: int) -> Tensor:
        """(heads,): 2 scale sigma_max(Q) sigma_max(K) max|y| max|x|."""
        width = self.query.shape[0] // heads
        tops = [
            torch.linalg.matrix_norm(weight.detach().double().reshape(-1, width, weight.shape[1]), ord=2)
            for weight in (self.query, self.key)
        ]
        query, key = tops[0], tops[1].repeat_interleave(heads // len(tops[1]))
        scale = float(width) ** -0.5 if self.scale is None else self.scale
        bounds: Tensor = 2 * abs(scale) * query * key * self.largest[0] * self.largest[1]
        return bounds


@contextmanager
def reading_projections(model: nn.Module) -> Iterator[dict[str, Projections]]:
    """Name of an attention module -> its projections, where they can be read; the largest inputs fill as it runs."""
    found = {name: projections for name, module in attention_modules(model).items() if (projections := _of(module))}
    with ExitStack() as stack:
        for projections in found.values():
            for side, source in enumerate(projections.sources):
                hook = source.register_forward_pre_hook(_keeper(projections, side), with_kwargs=True)
                stack.callback(hook.remove)
        yield found


def _keeper(projections: Projections, side: int) -> Any:
    is_attention = isinstance(projections.sources[side], nn.MultiheadAttention)

    def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = (*args, *kwargs.values())[side if is_attention else 0].detach().double()
        squares = given.square().sum(-1)
        biased = _has_bias(projections, side)
        longest = (squares + 1 if biased else squares).max().sqrt().item()
        projections.largest[side] = max(projections.largest[side], longest)

    return keep


def _has_bias(projections: Projections, side: int) -> bool:
    source = projections.sources[side]
    bias = source.in_proj_bias if isinstance(source, nn.MultiheadAttention) else source.bias
    return bias is not None


def _of(module: nn.Module) -> Projections | None:
    """None where something else than a linear map stands between inputs and logits, or its layout is not known."""
    if any(isinstance(getattr(module, norm, None), nn.Module) for norm in NORMS):
        return None
    scale = next((s for s in (getattr(module, n, None) for n in ("scaling", "scale")) if isinstance(s, float)), None)
    if isinstance(module, nn.MultiheadAttention):
        if module.in_proj_weight is None or module.bias_k is not None:
            return None
        query, key, _ = _with_bias(module.in_proj_weight, module.in_proj_bias).chunk(3)
        return Projections(scale, query, key, (module, module))
    for name, place in PROJECTIONS.items():
        projection = getattr(module, name, None)
        if isinstance(projection, nn.Module):
            return _read(module, name, projection, place, scale)
    return None


def _read(module: nn.Module, name: str, projection: nn.Module, place: str, scale: float | None) -> Projections | None:
    whole = _matrix(projection)
    if whole is None:
        return None
    if place == ALONE:
        beside = getattr(module, KEY_BESIDE.get(name, ""), None)
        key = _matrix(beside) if isinstance(beside, nn.Module) else None
        return None if key is None else Projections(scale, whole, key, (projection, beside))  # type: ignore[arg-type]
    heads = next((h for h in (getattr(module, n, None) for n in ("num_heads", "num_attention_heads")) if h), None)
    third = whole.shape[0] // 3
    if place == BY_HEAD and isinstance(heads, int):
        query, key, _ = whole.reshape(heads, 3, -1, whole.shape[1]).unbind(1)
        return Projections(scale, query.flatten(0, 1), key.flatten(0, 1), (projection, projection))
    if place == FIRST:
        width = getattr(module, "head_dim", None)
        queries = heads * width if isinstance(heads, int) and isinstance(width, int) else third
        keys = (whole.shape[0] - queries) // 2
        return Projections(scale, whole[:queries], whole[queries : queries + keys], (projection, projection))
    return None


def _matrix(projection: nn.Module) -> Tensor | None:
    weight, bias = getattr(projection, "weight", None), getattr(projection, "bias", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        return None
    turned = type(projection).__name__ == "Conv1D"
    if not turned and not isinstance(projection, nn.Linear):
        return None
    return _with_bias(weight.T if turned else weight, bias)


def _with_bias(weight: Tensor, bias: Tensor | None) -> Tensor:
    return weight if bias is None else torch.cat([weight, bias.unsqueeze(1)], 1)
