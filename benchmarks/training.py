"""The training loop against a bare one written by hand, and drawing glyphs against the training they feed.

    python benchmarks/training.py [ROUNDS]

Prints ratios of times measured in turn in one run; the bare loop is what one writes without this package.
"""

import itertools
import platform
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
from torch import nn

from attemper.data import glyphs
from attemper.models import build
from attemper.training import Options, Run
from attemper.training.loop import Training
from attemper.training.parallel import Processes

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 7
CPU = torch.device("cpu")
CASES = {
    "MLP 6 x 256, 20 x 20 pixels": Options(device="cpu", evaluate_every=0, epochs=8),
    "the same, evaluated every epoch": Options(device="cpu", epochs=8),
    "ResNet-20, 20 x 20 pixels": Options(
        device="cpu", evaluate_every=0, epochs=1, model="resnet20", classes=20, per_class=128, lr=0.02
    ),
}


def bare_model(options: Options, classes: int) -> nn.Module:
    if options.model != "mlp":
        return build(options.model, image_shape=(1, 20, 20), classes=classes)
    widths = [400, *[256] * 6]
    hidden = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(256, classes))


def time_bare(options: Options, training: Training) -> float:
    """Seconds a step; images standardised beforehand, as one would."""
    images, labels = training.images.batch(torch.arange(len(training.images)))
    images = (images - images.mean()) / images.std()
    model = bare_model(options, len(training.images.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, training.steps)
    begun = time.perf_counter()
    for _ in range(options.epochs):
        order = torch.randperm(len(images))
        for step in range(training.steps_an_epoch):
            chosen = order[step * training.batch : (step + 1) * training.batch]
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
    return (time.perf_counter() - begun) / training.steps


def prepared(options: Options, folder: Path) -> Training:
    run = Run(folder)
    run.start(options)
    return Training(options, run, CPU, Processes(0, 1))


def time_ours(training: Training) -> float:
    """Seconds a step, logging and checkpoints included, the final evaluation not."""
    training.conclude = lambda diverged_at=None: {}  # type: ignore[method-assign]
    begun = time.perf_counter()
    with warnings.catch_warnings(action="ignore"):
        training.go(lambda step, steps, loss: None)
    return (time.perf_counter() - begun) / training.steps


def time_drawing() -> float:
    with tempfile.TemporaryDirectory() as cache:
        glyphs.cache_folder = lambda: Path(cache)
        begun = time.perf_counter()
        for split in ("train", "test", "shifted"):
            glyphs.read(split)
        return time.perf_counter() - begun


def row(name: str, *cells: str) -> None:
    print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    drawing = statistics.median(time_drawing() for _ in range(3))
    print(
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}\n"
    )
    row(
        "training",
        "bare loop, ms a step",
        "ours, ms a step",
        "ours / bare, fastest rounds",
        "median (range) over rounds",
    )
    row("---", "---", "---", "---", "---")
    for name, given in CASES.items():
        options = given.resolved()
        bare, ours = [], []
        for turn in range(ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                training = prepared(options, Path(folder))
                # in turns: whoever comes second finds a warmer machine
                if turn % 2:
                    ours.append(time_ours(training))
                bare.append(time_bare(options, training))
                if not turn % 2:
                    ours.append(time_ours(training))
        ratios = sorted(a / b for a, b in zip(ours, bare, strict=True))
        best = [min(times) for times in (bare, ours)]
        cells = [f"{1000 * seconds:.2f}" for seconds in best]
        spread = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        row(name, *cells, f"{best[1] / best[0]:.3f}", spread)
        if name.startswith("MLP"):
            eight_epochs = 8 * training.steps_an_epoch * statistics.median(ours)
    print(
        f"\nDrawing 30,000 glyphs: {drawing:.2f} s, {drawing / eight_epochs:.2f} of the 8 epochs of training it feeds."
    )


if __name__ == "__main__":
    main()
