"""The command line: attemper demo, train, data, dispersion."""

import itertools
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from .checks import whole
from .errors import AttemperError
from .training.options import Data, Model, Optimisation, Options, Running, Temperature

DEMO_TEMPERATURES = (1.0, 10.0, 100.0)
console = Console()
DIVERGED, REFUSED, STOPPED = 1, 2, 130


def demo() -> None:
    """Train a small network at T = 1, 10 and 100 on characters drawn here, and show what the temperature does."""
    from .training.loop import train

    results: dict[float, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, progress_bars() as bars:
        for temperature in DEMO_TEMPERATURES:
            options = Options(temperature=temperature)
            shown = shown_on(bars, f"T = {temperature:g}")
            results[temperature] = train(options, Path(folder) / f"{temperature:g}", shown)
    console.print(results_table(results.values()))
    console.print(conclusion(results), highlight=False)


def train(
    out: Path,
    data: tyro.conf.OmitArgPrefixes[Data],
    model: tyro.conf.OmitArgPrefixes[Model],
    temperature: tyro.conf.OmitArgPrefixes[Temperature],
    optimisation: tyro.conf.OmitArgPrefixes[Optimisation],
    running: tyro.conf.OmitArgPrefixes[Running],
) -> None:
    """Train a classifier at a temperature. Run again with the same options, an interrupted training goes on.

    Args:
        out: Folder of the run: options, metrics, checkpoints, weights, result.
    """
    from .training.loop import train

    options = Options(**dict(data), **dict(model), **dict(temperature), **dict(optimisation), **dict(running))
    with progress_bars() as bars:
        shown = shown_on(bars, f"{options.model} on {options.data}, T = {options.temperature:g}")
        result = train(options, out, shown)
    if result["status"] == "diverged":
        stop(f"diverged. {result['message']}", DIVERGED)
    console.print(results_table([result]))
    console.print(f"{out}: done, {result['steps']} steps in {result['seconds']:.0f} s", highlight=False)


def data(
    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="NAME")] = None,
    split: str = "train",
    root: Path | None = None,
) -> None:
    """List the data sets, or tell about one of them.

    Args:
        name: A data set; without it all of them are listed.
        split: The split to tell about.
        root: Folder that holds the files. Without it: $ATTEMPER_DATA, or data/ here.
    """
    from .data.load import describe, load

    if name is None:
        frame = describe(root)
        frame = frame.drop(columns="origin").astype(object).where(frame.notna(), "")
        table = Table(*(name.replace("_", " ") for name in frame.columns), box=None, padding=(0, 1, 0, 0))
        table.columns[0].no_wrap = True
        for row in frame.itertuples(index=False):
            table.add_row(*map(str, row))
        console.print(table)
        return
    images = load(name, split, root)
    console.print(f"{images!r}"[1:-1], highlight=False)
    mean, std = images.statistics
    console.print(f"channel means {rounded(mean)}, standard deviations {rounded(std)}", highlight=False)
    console.print(f"classes {', '.join(images.classes)}", highlight=False, markup=False)
    console.print(f"fingerprint {images.fingerprint}", highlight=False)


def dispersion(
    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")],
    text: Path | None = None,
    lengths: tuple[int, ...] = (64, 128, 256, 512, 1024),
    batch: int = 1,
    seed: int = 0,
    out: Path = Path("dispersion"),
) -> None:
    """Measure how the attention of a model spreads as its input grows.

    Args:
        model: A folder with a model of transformers, or its name on the hub.
        text: A text to read from; without it random tokens are taken.
        lengths: Numbers of tokens.
        batch: Sequences at each length.
        seed: Chooses the sequences.
        out: Folder for dispersion.json and dispersion.png.
    """
    from .attention.dispersion_report import by_layer, report

    lengths = tuple(whole("lengths", length, least=2) for length in lengths)
    frame, made = report(model, lengths, text, whole("batch", batch), whole("seed", seed, least=0), out)
    layers = by_layer(frame)
    table = Table("layer", *layers.columns)
    for column in table.columns[1:]:
        column.justify = "right"
    table.columns[0].no_wrap = True
    for layer, *numbers in layers.itertuples():
        table.add_row(str(layer), *(f"{number:.3f}" for number in numbers))
    console.print(table)
    heads = len(frame[["layer", "head"]].drop_duplicates())
    console.print(
        f"{made['class']} on {made['source']}, {heads} heads; means over the heads of a layer. entropy: nats of a row "
        "at that length; weight: the largest of a row; slope: of entropy in ln n, 1 for uniform attention, 0 where "
        f"it does not grow. In {out}: dispersion.json, dispersion.png",
        highlight=False,
    )


def progress_bars() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeElapsedColumn(),
        console=console,
    )


def shown_on(bars: Progress, name: str) -> Callable[[int, int, float], None]:
    """A training's report as a bar of that name, which appears with the first."""
    tasks: list[TaskID] = []

    def report(step: int, steps: int, loss: float) -> None:
        if not tasks:
            tasks.append(bars.add_task(name, total=steps, loss=""))
        bars.update(tasks[0], completed=step, loss=f"loss {loss:.3f}")

    return report


def results_table(results: Iterable[dict[str, Any]]) -> Table:
    table = Table("T", "train", "test", "shifted", "logits norm", "solution rank")
    for column in table.columns:
        column.justify = "right"
    for result in results:
        first, last = result["made"]["options"]["temperature"], result["final_temperature"]
        temperature = f"{first:g}" if first == last else f"{first:g} to {last:.4g}"
        accuracies = (result.get(f"{split}_accuracy") for split in ("train", "test", "shifted"))
        numbers = ("none" if accuracy is None else f"{accuracy:.3f}" for accuracy in accuracies)
        table.add_row(temperature, *numbers, f"{result['logits_norm']:.4g}", str(result["solution_rank"]))
    return table


def conclusion(results: dict[float, dict[str, Any]]) -> str:
    """One sentence on what the demo's table shows, whichever way it came out."""
    (cold, first), *_, (hot, last) = results.items()
    ranks = [result["solution_rank"] for result in results.values()]
    fitted = min(result["train_accuracy"] for result in results.values())
    falls = all(before > after for before, after in itertools.pairwise(ranks))
    trend = "the solution rank falls" if falls else "the solution rank does not fall steadily"
    classes = len(first["made"]["classes"])
    growth = last["logits_norm"] / first["logits_norm"]
    return (
        f"From T = {cold:g} to T = {hot:g} {trend}, {' -> '.join(map(str, ranks))} directions for {classes} classes, "
        f"and the logits grow {growth:.0f}-fold, while every network fits at least {fitted:.1%} of its training data."
    )


def rounded(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:.4f}" for number in numbers)


SUMMARY = "Measures what softmax temperature does inside a neural network, and sets it."
COMMANDS: dict[str, Callable[..., None]] = {"demo": demo, "train": train, "data": data, "dispersion": dispersion}


def main() -> None:
    warnings.showwarning = lambda message, *rest: console.print(f"warning: {message}", style="yellow", highlight=False)
    console.quiet = os.environ.get("RANK", "0") != "0"  # of torchrun's processes one speaks
    name, *rest = sys.argv[1:] or [""]
    try:
        if name in COMMANDS:
            tyro.cli(COMMANDS[name], prog=f"attemper {name}", args=rest)
        else:
            tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="attemper", description=SUMMARY)
    except (AttemperError, OSError) as error:
        stop(str(error), REFUSED)
    except (RuntimeError, MemoryError) as error:
        # torch's own: no memory, an operation that a device lacks
        stop(f"torch cannot do this here: {str(error).splitlines()[0] if str(error) else 'no memory'}", REFUSED)
    except KeyboardInterrupt:
        stop("stopped" + ("; the same command goes on from here" if name == "train" else ""), STOPPED)


def stop(message: str, status: int) -> NoReturn:
    if not console.quiet:
        print(f"attemper: {message}", file=sys.stderr)
    sys.exit(status)
