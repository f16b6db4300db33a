"""The training loop. All that is random in a step comes from the seed and the step's number, so that a training that
was interrupted goes on exactly as it would have."""

import contextlib
import copy
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn

from ..data.images import Images
from ..errors import ArgumentError, CheckpointError
from ..gauge.moments import float64
from ..gauge.rank import numerical_rank
from ..knob.losses import TemperedCrossEntropy
from ..models.classifier import Classifier
from . import checkpoint, watch
from .batches import batches, on_device
from .evaluate import Evaluation, evaluate
from .options import Options
from .parallel import Processes, choose_device, processes, threads
from .prepare import (
    build_augment,
    build_loss,
    build_model,
    build_optimizer,
    learning_rate,
    load_splits,
    mixed_precision,
)
from .run import Run, how_made
from .seeds import derived, generator, permutation, seed_device
from .stop import asked_to_stop

Report = Callable[[int, int, float], None]
MOST_EVALUATED = 50_000
MOST_SAVING = 0.02


class Objective(nn.Module):
    """The model and its loss in one: images and labels -> mean loss."""

    def __init__(self, model: Classifier, loss: TemperedCrossEntropy) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.loss(self.model(images), labels)
        return loss


class State(BaseModel):
    """What goes from step to step, beside the weights and the optimizer."""

    model_config = ConfigDict(strict=True, extra="forbid")

    data: str
    initial_logits_norm: float
    step: int
    seconds: float
    loss_sum: float
    losses: int
    looked_for_stall: bool
    warnings: list[str]


def train(options: Options, out: Path | str, report: Report | None = None) -> dict[str, Any]:
    """Trains what `options` say into the folder `out` and returns what result.json then holds.

    Where `out` holds that training already, done or interrupted, it goes on from there. `report(step, steps, loss)`
    is called as losses come. The result's `status` is "done" or "diverged".
    """
    options, run = options.resolved(), Run(out)
    device = choose_device(options.device)
    random_devices = [device] if device.type == "cuda" else []
    with threads(options.threads), processes(device) as group, torch.random.fork_rng(random_devices):
        if group.leads:
            run.check(options)
        group.wait()
        if (result := run.result) is not None:
            return result
        with run.held() if group.leads else contextlib.nullcontext():
            return Training(options, run, device, group).go(report or (lambda step, steps, loss: None))


class Training:
    """One process's part of a training: `go` takes all its steps."""

    def __init__(self, options: Options, run: Run, device: torch.device, group: Processes) -> None:
        self.options, self.run, self.device, self.group = options, run, device, group
        self.splits = {name: on_device(images, device) for name, images in load_splits(options).items()}
        self.images = self.splits["train"]
        self.batch = min(options.batch_size, len(self.images))
        if self.batch % group.count:
            raise ArgumentError("batch_size", self.batch, f"a multiple of the {group.count} processes")
        self.steps_an_epoch = len(self.images) // self.batch
        self.steps = self.steps_an_epoch * options.epochs

        model = build_model(options, self.images.image_shape, len(self.images.classes))
        model.standardise.set(*self.images.statistics)
        self.objective = Objective(model, build_loss(options)).to(device)
        self.optimizer = build_optimizer(options, self.objective.model, self.objective.loss)
        self.rate, self.augment = learning_rate(options), build_augment(options)
        self.autocast = mixed_precision(options, device)
        if self.batch == group.count and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
            raise ArgumentError("batch_size", self.batch, "two images a process at least, with batch norm,")
        self.state = self.restored()
        self.begun = time.monotonic() - self.state.seconds
        self.saved, self.pause = time.monotonic(), options.checkpoint_every
        self.unread: list[Tensor] = []

    def go(self, report: Report) -> dict[str, Any]:
        state, parallel = self.state, self.group.count > 1
        compute = nn.parallel.DistributedDataParallel(self.objective) if parallel else self.objective
        # elsewhere than on the CPU, and across processes, a look at the loss makes everything wait
        look_every = 1 if self.device.type == "cpu" and not parallel else self.options.log_every
        orders = (self.group.share(self.order(step)) for step in range(state.step, self.steps))
        self.objective.train()
        with asked_to_stop(unless=parallel) as stop:
            for images, labels in batches(self.images, orders, self.device):
                self.take_step(compute, images, labels)
                epoch_ends = state.step % self.steps_an_epoch == 0
                logs = state.step % self.options.log_every == 0 or epoch_ends
                if not (logs or state.step % look_every == 0 or stop()):
                    continue
                if (bad := self.read_losses()) is not None:
                    return self.conclude(diverged_at=bad)
                if logs:
                    self.log(report)
                if epoch_ends:
                    self.evaluate_now_and_then(state.step // self.steps_an_epoch)
                due = time.monotonic() - self.saved >= self.pause
                if (due or stop()) and state.step < self.steps:
                    self.save()
                    if stop():
                        raise KeyboardInterrupt
        return self.conclude()

    def take_step(self, compute: nn.Module, images: Tensor, labels: Tensor) -> None:
        step, options = self.state.step, self.options
        progress = step / self.steps
        seed_device(self.device, derived(options.seed, "step", step, self.group.rank))
        if self.augment:
            draws, first = generator(options.seed, "augment", step), self.group.rank * len(images)
            images = self.augment(images, draws, batch=self.batch, first=first)
        self.objective.loss.progress = progress
        rate = self.rate(progress)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        with self.autocast:
            loss = compute(images, labels)
        self.optimizer.zero_grad()
        loss.backward()
        if options.clip:
            nn.utils.clip_grad_norm_(self.objective.parameters(), options.clip)
        self.optimizer.step()
        self.unread.append(loss.detach())
        self.state.step += 1

    def order(self, step: int) -> Tensor:
        """The images of a step, for all processes: a part of its epoch's permutation."""
        epoch, place = divmod(step, self.steps_an_epoch)
        return permutation(len(self.images), self.options.seed, epoch)[place * self.batch : (place + 1) * self.batch]

    def read_losses(self) -> int | None:
        """Adds up the losses since the last look; the step of the first that is not finite, if any."""
        losses = torch.stack(self.unread)
        self.unread.clear()
        if self.group.count > 1:
            torch.distributed.all_reduce(losses)
            losses /= self.group.count
        values = losses.tolist()
        self.state.loss_sum += sum(values)
        self.state.losses += len(values)
        bad = [i for i, value in enumerate(values) if not math.isfinite(value)]
        return self.state.step - len(values) + 1 + bad[0] if bad else None

    def log(self, report: Report) -> None:
        state = self.state
        loss, state.loss_sum, state.losses = state.loss_sum / state.losses, 0.0, 0
        temperature = self.temperature()
        rate = self.optimizer.param_groups[0]["lr"]
        self.write({"loss": loss, "lr": rate, "temperature": temperature})
        if self.group.leads:
            report(state.step, self.steps, loss)
        if not state.looked_for_stall and 10 * state.step >= self.steps:
            state.looked_for_stall = True
            warning = watch.stalled(state.step, self.steps, loss, self.objective.model.classes, self.options)
            if warning and self.group.leads:
                state.warnings.append(warning)
                warnings.warn(warning, stacklevel=2)

    def evaluate_now_and_then(self, epoch: int) -> None:
        every = self.options.evaluate_every
        if every and epoch % every == 0 and epoch < self.options.epochs:
            test = self.evaluated("test")
            self.write({"test_accuracy": test.accuracy, "test_loss": test.loss if test.finite else None})
            self.objective.train()

    def evaluated(self, split: str) -> Evaluation:
        """On all images of a split, or a seeded sample of a very large one; the loss at the present temperature."""
        images = self.splits[split]
        chosen = permutation(len(images), 0, 0)[:MOST_EVALUATED].sort().values
        self.objective.eval()
        model, temperature = self.objective.model, self.temperature()
        return evaluate(model, images, chosen, temperature, self.batch, self.device, self.group, self.autocast)

    def temperature(self) -> float:
        now = self.objective.loss.temperature
        return now.item() if isinstance(now, Tensor) else now

    def write(self, line: dict[str, Any]) -> None:
        if self.group.leads:
            epoch = self.state.step / self.steps_an_epoch
            self.run.log({"step": self.state.step, "epoch": round(epoch, 4), **line})

    def save(self) -> None:
        begun = time.monotonic()
        self.state.seconds = begun - self.begun
        if self.group.leads:
            self.run.flush()
            state = self.state.model_dump()
            checkpoint.save(self.run.folder / "checkpoints", self.state.step, self.objective, self.optimizer, state)
        self.saved = time.monotonic()
        if self.options.checkpoint_every:
            self.pause = max(self.options.checkpoint_every, (self.saved - begun) / MOST_SAVING)

    def restored(self) -> State:
        """The state of the latest checkpoint, its tensors put in place; else that of a training that begins."""
        kept = checkpoint.restore(self.run.folder / "checkpoints", self.objective, self.optimizer)
        try:
            state = State(**kept) if kept else self.beginning()
        except ValidationError as error:
            raise CheckpointError(f"{self.run.folder}/checkpoints is damaged: {error}") from None
        if state.data != self.images.fingerprint:
            raise CheckpointError(
                f"{self.run.folder} was trained on data with the fingerprint {state.data}, but {self.images!r} "
                f"has {self.images.fingerprint}: bring those data back, or choose another folder"
            )
        if self.group.leads:
            self.run.start(self.options)
            self.run.forget_after(state.step)
        self.group.wait()
        return state

    def beginning(self) -> State:
        return State(
            data=self.images.fingerprint,
            initial_logits_norm=self.initial_logits_norm(),
            step=0,
            seconds=0.0,
            loss_sum=0.0,
            losses=0,
            looked_for_stall=False,
            warnings=[],
        )

    @torch.no_grad()
    def initial_logits_norm(self) -> float:
        """Mean 2-norm of the logits of up to 1000 images, as training first sees them."""
        seed_device(self.device, derived(self.options.seed, "initial"))
        some = permutation(len(self.images), 0, 0)[:1000]
        untrained = copy.deepcopy(self.objective.model).train()
        logits = float64(untrained(self.images.batch(some, self.device)[0]))
        return float(logits.norm(dim=1).mean())

    def conclude(self, diverged_at: int | None = None) -> dict[str, Any]:
        """Evaluates every split and writes weights and result, unless the training has diverged."""
        self.objective.loss.progress = self.state.step / self.steps
        evaluations = {} if diverged_at else {split: self.evaluated(split) for split in self.splits}
        if not all(evaluation.finite for evaluation in evaluations.values()):
            diverged_at = self.state.step
        result: dict[str, Any] = {"status": "diverged" if diverged_at else "done"}
        if diverged_at:
            result |= {"diverged_at": diverged_at, "message": watch.diverged(diverged_at, self.steps, self.options)}
        else:
            found = results(evaluations) | {"final_temperature": self.temperature()}
            self.write(found)
            result |= found
        state = self.state
        result |= {
            "initial_logits_norm": state.initial_logits_norm,
            "steps": state.step,
            "seconds": round(time.monotonic() - self.begun, 3),
            "warnings": state.warnings,
            "made": how_made(self.options, self.device, self.group) | described(self.splits),
        }
        if self.group.leads:
            if not diverged_at:
                self.run.keep_model(self.objective.model)
            self.run.finish(result)
            checkpoint.remove(self.run.folder / "checkpoints")
        self.group.wait()
        return result


def results(evaluations: dict[str, Evaluation]) -> dict[str, float]:
    """Accuracy and loss of every split; norm and ranks of the logits on the training data."""
    found: dict[str, float] = {}
    for split, evaluation in evaluations.items():
        found |= {f"{split}_accuracy": evaluation.accuracy, f"{split}_loss": evaluation.loss}
    train = evaluations["train"]
    found["logits_norm"] = train.logits_norm
    for threshold, suffix in ((1e-3, ""), (1e-2, "_1e-2"), (1e-4, "_1e-4")):
        found[f"solution_rank{suffix}"] = numerical_rank(train.logits, threshold)
    return found


def described(splits: dict[str, Images]) -> dict[str, Any]:
    train = splits["train"]
    return {
        "data": {split: images.fingerprint for split, images in splits.items()},
        "evaluated": {split: min(len(images), MOST_EVALUATED) for split, images in splits.items()},
        "image_shape": list(train.image_shape),
        "classes": list(train.classes),
    }
