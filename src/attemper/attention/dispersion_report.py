"""The dispersion of a model of transformers on a text or on random tokens, as a table, a figure and a file."""

import hashlib
import math
import platform
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .. import __version__
from ..errors import ArgumentError, DataError, FileError, MissingExtraError
from ..files import make_folder, whole_file, write_json
from .dispersion import dispersion

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def report(
    name: str, lengths: tuple[int, ...], text: Path | None, batch: int, seed: int, out: Path
) -> "tuple[pd.DataFrame, dict[str, Any]]":
    """Measures the model `name` (a folder, or what the hub calls it) and writes dispersion.json and dispersion.png."""
    model, tokens, source = _model(name), None, "random tokens"
    if text is not None:
        tokens, source = _tokens(name, text), f"{text.name}, sha256 {hashlib.sha256(text.read_bytes()).hexdigest()}"
    longest = getattr(model.config, "max_position_embeddings", None)
    if isinstance(longest, int) and max(lengths) > longest:
        warnings.warn(f"{name} was made for {longest} positions, and {max(lengths)} are asked for", stacklevel=2)
    inputs = {n: _batch(model, tokens, n, batch, seed) for n in lengths}
    frame = dispersion(model, inputs)
    made = {
        "model": name,
        "class": type(model).__name__,
        "source": source,
        "lengths": list(lengths),
        "batch": batch,
        "seed": seed,
        "versions": {
            "attemper": __version__,
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "python": platform.python_version(),
        },
        "device": str(model.device),
    }
    make_folder(out)
    write_json(out / "dispersion.json", {"made": made, "slopes": _plain(frame.attrs["slopes"]), "rows": _plain(frame)})
    with whole_file(out / "dispersion.png") as temporary:
        draw(frame).savefig(temporary, format="png", dpi=150)
    return frame, made


def draw(frame: "pd.DataFrame") -> "Figure":
    """Entropy and largest weight against the keys a row sees: a line a layer, the mean of its heads."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    entropy, weight = figure.subplots(1, 2)
    layers = list(dict.fromkeys(frame.layer))
    for number, layer in enumerate(layers):
        of_layer = frame[frame.layer == layer].groupby("length")[["keys", "entropy", "largest_weight"]].mean()
        colour = colormaps["viridis"](number / max(1, len(layers) - 1) * 0.9)
        for axes, column in ((entropy, "entropy"), (weight, "largest_weight")):
            axes.plot(of_layer["keys"], of_layer[column], marker="o", markersize=3, color=colour, label=layer)
    keys = np.geomspace(frame["keys"].min(), frame["keys"].max(), 50)
    entropy.plot(keys, np.log(keys), color="grey", linestyle="--", label="uniform: ln n")
    weight.plot(keys, 1 / keys, color="grey", linestyle="--", label="uniform: 1 / n")
    for axes, title in ((entropy, "entropy of a row, nats"), (weight, "largest weight of a row")):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("keys a row sees")
        axes.set_title(title, fontsize=10)
    weight.set_yscale("log")
    if len(layers) <= 12:
        entropy.legend(fontsize=7)
    else:
        entropy.legend(
            [entropy.lines[0], entropy.lines[len(layers) - 1], entropy.lines[-1]],
            [layers[0], layers[-1], "uniform: ln n"],
            fontsize=7,
        )
    return figure


def by_layer(frame: "pd.DataFrame") -> "pd.DataFrame":
    """A row a layer, means over its heads: entropy and largest weight at the least and the greatest length, slope."""
    import pandas as pd

    slopes = pd.DataFrame(frame.attrs["slopes"]).groupby("layer", sort=False).slope.mean()
    first, last = frame.length.min(), frame.length.max()
    means = frame.groupby(["layer", "length"], sort=False)[["entropy", "largest_weight"]].mean().unstack("length")
    columns = {
        f"entropy {first}": means["entropy"][first],
        f"entropy {last}": means["entropy"][last],
        "slope": slopes,
        f"weight {first}": means["largest_weight"][first],
        f"weight {last}": means["largest_weight"][last],
    }
    return pd.DataFrame(columns).reindex(list(dict.fromkeys(frame.layer)))


def _model(name: str) -> Any:
    try:
        from transformers import AutoModel, logging
    except ImportError as error:
        raise MissingExtraError("transformers", "attemper dispersion") from error
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        return AutoModel.from_pretrained(name, dtype=torch.float32).eval()
    except (OSError, ValueError) as error:
        raise FileError(f"cannot load the model {name}: {str(error).splitlines()[0]}") from error


def _tokens(name: str, text: Path) -> torch.Tensor:
    from transformers import AutoTokenizer

    if not text.is_file():
        raise FileError(f"cannot read {text}: no such file")
    missing = f"{name} has no tokenizer for a text; without --text random tokens are taken"
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except Exception as error:
        raise FileError(f"{missing}. {(str(error).splitlines() or [type(error).__name__])[0]}") from error
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        # what transformers makes up where a folder holds none
        raise FileError(missing)
    return torch.tensor(tokenizer(text.read_text(errors="replace"), verbose=False).input_ids)


def _batch(model: Any, tokens: torch.Tensor | None, length: int, batch: int, seed: int) -> dict[str, torch.Tensor]:
    size = getattr(model.config.get_text_config(), "vocab_size", None)
    if model.main_input_name != "input_ids" or size is None:
        raise ArgumentError("model", type(model).__name__, "a model of text (others: at.dispersion(model, inputs))")
    generator = torch.Generator().manual_seed(seed)
    if tokens is None:
        ids = torch.randint(size, (batch, length), generator=generator)
    else:
        if len(tokens) < length:
            raise DataError(f"the text has {len(tokens)} tokens, and a length of {length} is asked for")
        starts = torch.randint(len(tokens) - length + 1, (batch,), generator=generator)
        ids = torch.stack([tokens[start : start + length] for start in starts])
    ids = ids.to(model.device)
    return {"input_ids": ids} | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})


def _plain(rows: Any) -> list[dict[str, Any]]:
    """For JSON, which knows no NaN."""
    records = rows if isinstance(rows, list) else rows.to_dict("records")
    return [{key: None if isinstance(v, float) and math.isnan(v) else v for key, v in row.items()} for row in records]
