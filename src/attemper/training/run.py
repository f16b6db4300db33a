"""A run's folder: options.json, metrics.jsonl, checkpoints while it trains, then model.safetensors and result.json."""

import contextlib
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..errors import CheckpointError, FileError
from ..files import make_folder, read_json, whole_file, write_json
from ..models.classifier import Classifier
from .options import INDIFFERENT, Options
from .parallel import Processes
from .prepare import build_model


class Run:
    """The folder of one training, being trained or done.

    `options`, `metrics` (a list, a dict a line), `result` (a dict, None until it is done) and `model()` read it.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    @property
    def options(self) -> Options:
        return Options(**read_json(self.folder / "options.json"))

    @property
    def result(self) -> dict[str, Any] | None:
        file = self.folder / "result.json"
        if not file.exists():
            return None
        result = read_json(file)
        if "status" not in result:
            raise FileError(f"{file} is damaged: it has no status. Delete it to train again")
        return result

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Lines that a killed process or a damaged disk left broken are left out."""
        file = self.folder / "metrics.jsonl"
        lines = file.read_text(errors="replace").split("\n") if file.exists() else []
        return [line for line in map(_line, lines) if line is not None]

    def model(self) -> Classifier:
        """The trained model, in eval mode, on the CPU; it takes raw images in [0, 1]."""
        from safetensors.torch import load_file

        file, made = self.folder / "model.safetensors", (self.result or {}).get("made", {})
        if not file.exists() or "image_shape" not in made:
            status = (self.result or {"status": "not done"})["status"]
            raise FileError(f"{self.folder} holds no trained model: its training is {status}")
        model = build_model(self.options, made["image_shape"], len(made["classes"]))
        model.load_state_dict(load_file(file))
        return model.eval()

    def check(self, options: Options) -> None:
        """Refuses a folder that cannot be, or that holds a training with other options."""
        make_folder(self.folder)
        if not (self.folder / "options.json").exists():
            return
        ours, theirs = options.model_dump(mode="json"), self.options.model_dump(mode="json")
        different = [name for name in ours if ours[name] != theirs[name] and name not in INDIFFERENT]
        if different:
            found = ", ".join(f"{name} = {theirs[name]!r} (now {ours[name]!r})" for name in different)
            raise CheckpointError(f"{self.folder} holds a training with other options: {found}. Choose another folder")

    def start(self, options: Options) -> None:
        file = self.folder / "options.json"
        if not file.exists():
            write_json(file, options.model_dump(mode="json"))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes from training here; the system lets go of it when this one dies, however it does."""
        import fcntl

        with (self.folder / ".lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise FileError(f"{self.folder} is being trained by {file.read().strip()}") from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}")
            file.flush()
            yield

    def log(self, line: dict[str, Any]) -> None:
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def flush(self) -> None:
        """Puts the metrics on the disk, before a checkpoint says that they are there."""
        with (self.folder / "metrics.jsonl").open("a") as file:
            os.fsync(file.fileno())

    def forget_after(self, step: int) -> None:
        """Drops metrics later than `step`, and a line that a killed process left unfinished."""
        kept = [line for line in self.metrics if line["step"] <= step]
        with whole_file(self.folder / "metrics.jsonl") as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))

    def keep_model(self, model: Classifier) -> None:
        from safetensors.torch import save

        with whole_file(self.folder / "model.safetensors") as temporary:
            temporary.write_bytes(save({name: tensor.contiguous() for name, tensor in model.state_dict().items()}))

    def finish(self, result: dict[str, Any]) -> None:
        write_json(self.folder / "result.json", result)


def _line(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("step"), int) else None


def how_made(options: Options, device: torch.device, group: Processes) -> dict[str, Any]:
    """What a result must say of its origin, but for the data."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "options": options.model_dump(mode="json"),
        "versions": {"attemper": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "device": f"{device} ({name})",
        "threads": torch.get_num_threads(),
        "processes": group.count,
    }
