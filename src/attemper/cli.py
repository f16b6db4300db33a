"""The command line: attemper demo, train, data."""

import itertools
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

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
        tasks = {T: bars.add_task(f"T = {T:g}", start=False, loss="") for T in DEMO_TEMPERATURES}
        for temperature, task in tasks.items():
            options = Options(temperature=temperature)
            bars.start_task(task)
            results[temperature] = train(options, Path(folder) / f"{temperature:g}", shown_on(bars, task))
    console.print(results_table(results))
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
        task = bars.add_task(f"{options.model} on {options.data}, T = {options.temperature:g}", loss="")
        result = train(options, out, shown_on(bars, task))
    if result["status"] == "diverged":
        print(f"attemper: diverged. {result['message']}", file=sys.stderr)
        sys.exit(DIVERGED)
    console.print(results_table({options.temperature: result}))
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
        table = Table(*frame.columns)
        for row in frame.astype(object).where(frame.notna(), "").itertuples(index=False):
            table.add_row(*map(str, row))
        console.print(table)
        return
    images = load(name, split, root)
    console.print(f"{images!r}"[1:-1], highlight=False)
    mean, std = images.statistics
    console.print(f"channel means {rounded(mean)}, standard deviations {rounded(std)}", highlight=False)
    console.print(f"classes {', '.join(images.classes)}", highlight=False, markup=False)
    console.print(f"fingerprint {images.fingerprint}", highlight=False)


def progress_bars() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeElapsedColumn(),
        console=console,
    )


def shown_on(bars: Progress, task: Any) -> Any:
    def report(step: int, steps: int, loss: float) -> None:
        bars.update(task, completed=step, total=steps, loss=f"loss {loss:.3f}")

    return report


def results_table(results: dict[float, dict[str, Any]]) -> Table:
    table = Table("T", "train", "test", "shifted", "logits norm", "solution rank")
    for column in table.columns:
        column.justify = "right"
    for temperature, result in results.items():
        accuracies = (result.get(f"{split}_accuracy") for split in ("train", "test", "shifted"))
        numbers = ("none" if accuracy is None else f"{accuracy:.3f}" for accuracy in accuracies)
        table.add_row(f"{temperature:g}", *numbers, f"{result['logits_norm']:.4g}", str(result["solution_rank"]))
    return table


def conclusion(results: dict[float, dict[str, Any]]) -> str:
    """One sentence on what the demo's table shows, whichever way it came out."""
    (cold, first), *_, (hot, last) = results.items()
    ranks = [result["solution_rank"] for result in results.values()]
    fitted = min(result["train_accuracy"] for result in results.values())
    falls = all(before > after for before, after in itertools.pairwise(ranks))
    trend = "the solution rank falls" if falls else "the solution rank does not fall steadily"
    directions = len(first["made"]["classes"]) - 1
    growth = last["logits_norm"] / first["logits_norm"]
    return (
        f"From T = {cold:g} to T = {hot:g} {trend}, {' -> '.join(map(str, ranks))} of {directions} directions, and the "
        f"logits grow {growth:.0f}-fold, while every network fits at least {fitted:.1%} of its training data."
    )


def rounded(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:.4f}" for number in numbers)


SUMMARY = "Measures what softmax temperature does inside a neural network, and sets it."
COMMANDS: dict[str, Callable[..., None]] = {"demo": demo, "train": train, "data": data}


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
        print(f"attemper: {error}", file=sys.stderr)
        sys.exit(REFUSED)
    except KeyboardInterrupt:
        print("attemper: stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        sys.exit(STOPPED)
