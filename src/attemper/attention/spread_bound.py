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
    """What an attention module makes its queries and keys of, and the largest inputs they met.

    weights: (outputs, inputs) of the query's projection and the key's, or of one that makes both, a bias being one more
    input; `place` says where in it the query stands. width: of a head, where the module says so.
    """

    weights: tuple[Tensor, ...]
    place: str
    sources: tuple[nn.Module, nn.Module]
    scale: float | None
    width: int | None
    largest: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def bounds(self, heads: int) -> Tensor | None:
        """(heads,): 2 scale sigma_max(Q) sigma_max(K) max|y| max|x|, or None where the layout is not known."""
        parts = self.parts(heads)
        if parts is None:
            return None
        tops = [torch.linalg.matrix_norm(part.detach().double(), ord=2) for part in parts]
        query, key = tops[0], tops[1].repeat_interleave(heads // len(tops[1]))
        scale = float(parts[0].shape[1]) ** -0.5 if self.scale is None else self.scale
        bounds: Tensor = 2 * abs(scale) * query * key * self.largest[0] * self.largest[1]
        return bounds

    def parts(self, heads: int) -> tuple[Tensor, Tensor] | None:
        """The query's projection (heads, width, inputs) and the key's (key heads, width, inputs)."""
        first, last = self.weights[0], self.weights[-1]
        outputs, inputs = first.shape
        if self.place == BY_HEAD:
            if outputs % (3 * heads):
                return None
            by_head = first.reshape(heads, 3, -1, inputs)
            return by_head[:, 0], by_head[:, 1]
        width = self.width or (outputs // heads if self.place == ALONE else outputs // (3 * heads))
        queries = heads * width
        keys = len(last) if self.place == ALONE else (outputs - queries) // 2
        if width < 1 or queries > outputs or keys < width or keys % width or heads % (keys // width):
            return None
        key = last if self.place == ALONE else first[queries : queries + keys]
        return first[:queries].reshape(heads, width, -1), key.reshape(-1, width, key.shape[1])


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
    """None where something else than a linear map stands between inputs and logits, or its name is not known."""
    if any(isinstance(getattr(module, norm, None), nn.Module) for norm in NORMS):
        return None
    scale = next((s for s in (getattr(module, n, None) for n in ("scaling", "scale")) if isinstance(s, float)), None)
    width = getattr(module, "head_dim", None)
    width = width if isinstance(width, int) else None
    if isinstance(module, nn.MultiheadAttention):
        if module.in_proj_weight is None or module.bias_k is not None:
            return None
        both = _with_bias(module.in_proj_weight, module.in_proj_bias)
        return Projections((both,), FIRST, (module, module), scale, width)
    for name, place in PROJECTIONS.items():
        projection, beside = getattr(module, name, None), getattr(module, KEY_BESIDE.get(name, ""), None)
        if isinstance(projection, nn.Module):
            sources = projection, beside if place == ALONE and isinstance(beside, nn.Module) else projection
            weights = [_matrix(source) for source in dict.fromkeys(sources)]
            if place == ALONE and beside is None:
                return None
            known = tuple(weight for weight in weights if weight is not None)
            return Projections(known, place, sources, scale, width) if len(known) == len(weights) else None
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
