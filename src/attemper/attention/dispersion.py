"""How the attention of a model spreads as its input grows."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ..checks import whole
from ..errors import ArgumentError
from ..knob.rows import RowStatistics
from .intercept import watching
from .layers import evaluating
from .spread_bound import reading_projections
from .stacks import innermost

if TYPE_CHECKING:
    import pandas as pd

# of the keys that the row of a call with the most keys sees: rows with fewer are left out
SHARE = 0.75


def dispersion(model: nn.Module, inputs: Mapping[int, Any]) -> "pd.DataFrame":
    """Entropy and sharpness of every head against length: a row per layer, head and length.

    `inputs` maps a length to what the model is called with: a tensor, a tuple of arguments or a dict of named ones.
    Rows of attention that see at least three quarters of the keys that the call's longest row sees are counted, so that
    a causal model is measured at its full length; `keys` is how many they see in the mean. The other columns are means
    over them too: entropy in nats, normalised_entropy (entropy / ln keys), largest_weight and logit_spread, and
    spread_bound, which the spread cannot exceed (2 scale sigma_max(Q) sigma_max(K) max|y| max|x|: NaN where biases,
    sinks, norms, a temperature or an unknown layout stand between). `frame.attrs["slopes"]` lists for each layer and
    head the slope of entropy in ln keys with its standard error: 1 where entropy grows as a uniform row's does, 0 where
    it stays.

    The model runs in evaluation mode without gradients and is left as it was.

    >>> encoder = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> frame = dispersion(encoder, {n: torch.randn(1, n, 8) for n in (8, 16, 32)})
    >>> frame.shape, frame.layer.unique().tolist()
    ((6, 10), ['self_attn'])
    """
    import pandas as pd

    _check(model, inputs)
    frames = []
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(evaluating(model))
        # a temperature multiplies the logits, and the projections know nothing of it
        tempered = innermost() is not None or _has_policy(model)
        biased, stretch = stack.enter_context(_reachable(model)), _stretch(model)
        for length in sorted(inputs):
            with watching(model, choose=_longest) as record, reading_projections(model) as projections:
                _call(model, inputs[length])
                if not record:
                    accepted = "a model that calls scaled_dot_product_attention, nn.MultiheadAttention or transformers'"
                    raise ArgumentError("model", f"{type(model).__name__}, in which no attention was seen", accepted)
            frame = record.to_frame()
            frame.insert(0, "n", length)
            bounds = {
                name: bound
                for name, found in projections.items()
                if not tempered and name not in biased and (frame.layer == name).any()
                if (bound := found.bounds(int(frame["head"][frame.layer == name].max()) + 1)) is not None
            }
            frame["spread_bound"] = [
                stretch * bounds[layer][head].item() if layer in bounds else np.nan
                for layer, head in zip(frame.layer, frame["head"], strict=True)
            ]
            frames.append(frame)
    frame = pd.concat(frames, ignore_index=True).rename(columns={"length": "keys", "n": "length"})
    # a module that runs more than once a call is one layer
    means = [name for name in frame.columns if name not in ("length", "call", "layer", "head", "rows")]
    grouped = frame.groupby(["layer", "head", "length"], sort=False, dropna=False)
    frame = grouped.agg({"rows": "sum"} | dict.fromkeys(means, "mean")).reset_index()
    frame.attrs["slopes"] = slopes(frame)
    return frame


def slopes(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """For each layer and head: the least-squares slope of entropy in ln keys, and its standard error (NaN for two)."""
    found: list[dict[str, Any]] = []
    for key, rows in frame.groupby(["layer", "head"], sort=False, dropna=False):
        layer, head = key if isinstance(key, tuple) else (key, 0)
        x, y = np.log(rows["keys"].to_numpy()), rows.entropy.to_numpy()
        slope, error = _line(x, y)
        found.append({"layer": layer, "head": int(str(head)), "slope": slope, "error": error})
    return found


def _line(x: "np.ndarray[Any, Any]", y: "np.ndarray[Any, Any]") -> tuple[float, float]:
    away = x - x.mean()
    square = float(away @ away)
    if len(x) < 2 or square < 1e-12:
        return np.nan, np.nan
    slope = float(away @ y) / square
    left = y - y.mean() - slope * away
    return slope, float(np.sqrt(left @ left / (len(x) - 2) / square)) if len(x) > 2 else np.nan


def _stretch(model: nn.Module) -> float:
    """What a rotation (YaRN's) multiplies logits by: query and key each by its factor."""
    factors = [getattr(module, "attention_scaling", 1.0) for module in model.modules()]
    return float(max([f for f in factors if isinstance(f, float | int)], default=1.0)) ** 2


def _longest(rows: RowStatistics) -> torch.Tensor:
    return rows.length >= SHARE * rows.length.max()


def _check(model: object, inputs: object) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentError("model", model, "an nn.Module")
    if not isinstance(inputs, Mapping) or not inputs:
        raise ArgumentError("inputs", inputs, "a dict from a length to the model's inputs, with at least one")
    for length in inputs:
        whole("length in inputs", length)


def _call(model: nn.Module, given: Any) -> None:
    if isinstance(given, Mapping):
        model(**given)
    elif isinstance(given, tuple | list):
        model(*given)
    else:
        model(given)


def _has_policy(model: nn.Module) -> bool:
    """Whether `at.huggingface.temper` gave it one, or `register` one to all that have none."""
    from . import backend

    registered = getattr(getattr(model, "config", None), "_attn_implementation", None) == backend.NAME
    if registered and backend.registered() is not None:
        return True
    return any("_attemper" in module.__dict__ for module in model.modules())


@contextmanager
def _reachable(model: nn.Module) -> Iterator[set[str]]:
    """A model of transformers computes attention in ways of its own, some of which nobody sees: for the time being it
    takes ours. The names that fill are those of modules whose logits have a bias or a sink."""
    biased: set[str] = set()
    if not any(base.__module__.startswith("transformers.") for m in model.modules() for base in type(m).__mro__):
        yield biased
        return
    from . import backend
    from .switch import pretrained, runs_ours, switched

    names = {module: name for name, module in model.named_modules()}

    def listen(module: nn.Module, case: Any) -> None:
        if case.sinks is not None or case.is_biased:
            biased.add(names[module])

    backend.listeners.append(listen)
    try:
        if pretrained(model) and not runs_ours(model):
            with switched(model, None):
                yield biased
        else:
            yield biased
    finally:
        backend.listeners.remove(listen)
