"""Checkpoints: all that a training needs to go on as if it had never stopped."""

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CheckpointError
from ..files import read_json, whole_folder


def save(folder: Path, step: int, modules: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Writes folder/STEP with tensors.safetensors and state.json, whole or not at all, then removes older ones.

    The optimizer's tensors are named by parameter and slot; its rates are functions of the step and not kept.
    """
    from safetensors.torch import save as to_bytes

    slots = optimizer.state_dict()["state"]
    tensors = {f"modules.{name}": tensor for name, tensor in modules.state_dict().items()}
    tensors |= {f"optimizer.{i}.{slot}": tensor for i in slots for slot, tensor in slots[i].items()}
    older = _all(folder)
    data = to_bytes({name: tensor.contiguous() for name, tensor in tensors.items()})
    with whole_folder(folder / f"{step:09d}") as temporary:
        (temporary / "tensors.safetensors").write_bytes(data)
        (temporary / "state.json").write_text(json.dumps(state | {"step": step, "sha256": sha256(data).hexdigest()}))
    for path in older:
        shutil.rmtree(path)


def restore(folder: Path, modules: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    """Puts the latest checkpoint into `modules` and `optimizer` and returns its state; None where there is none."""
    from safetensors.torch import load

    found = _all(folder)
    if not found:
        return None
    latest = found[-1]
    try:
        # read, not mapped: the file is removed later
        data, state = (latest / "tensors.safetensors").read_bytes(), read_json(latest / "state.json")
    except OSError as error:
        raise CheckpointError(f"{latest} is damaged ({error}): delete it to start anew") from error
    if state.pop("sha256", None) != sha256(data).hexdigest():
        raise CheckpointError(f"{latest} is damaged (its tensors are not those written): delete it to start anew")
    tensors = load(data)

    _check_same(
        latest, modules, {n.removeprefix("modules."): t for n, t in tensors.items() if n.startswith("modules.")}
    )
    modules.load_state_dict({name: tensors[f"modules.{name}"] for name in modules.state_dict()})
    slots: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, slot = name.split(".")
            slots.setdefault(int(index), {})[slot] = tensor
    optimizer.load_state_dict(optimizer.state_dict() | {"state": slots})
    return state


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.name.isdigit())


def _check_same(where: Path, modules: nn.Module, tensors: dict[str, Tensor]) -> None:
    ours = {name: tuple(tensor.shape) for name, tensor in modules.state_dict().items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            raise CheckpointError(
                f"{where} is a checkpoint of another model: {name} has shape {theirs.get(name, 'none')} there "
                f"and {ours.get(name, 'none')} here"
            )
