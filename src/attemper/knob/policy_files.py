"""Policies as JSON files."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import choices
from ..errors import ArgumentError, FileError
from ..files import read_json, write_json
from .critical_scale import CriticalScale
from .entropy_target import EntropyTarget
from .per_head import PerHead
from .policies import Adaptive, Constant, Llama4, LogLength, Policy, SSMax, Yarn

VERSION = 1
FIELDS = {
    Constant: ("temperature",),
    Adaptive: ("coefficients", "min_entropy", "max_entropy"),
    EntropyTarget: ("nats", "max_beta", "max_passes"),
    LogLength: ("train_length",),
    SSMax: ("scale",),
    Yarn: ("factor",),
    Llama4: ("floor_scale", "attn_scale"),
    CriticalScale: ("multiple",),
    PerHead: ("policies", "default"),
}
KINDS: dict[str, Any] = {kind.__name__: kind for kind in FIELDS}
DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
}


def save_policy(policy: Policy, path: str | Path) -> None:
    """Writes a policy of this package as JSON, whole or not at all; `load_policy` gives an equal one.

    What an `SSMax` has learned is written with it; a policy of your own class is refused.
    """
    write_json(Path(path), {"attemper_policy": VERSION, "policy": _written("policy", policy)})


def load_policy(path: str | Path) -> Policy:
    """The policy that `save_policy` wrote."""
    path = Path(path)
    data = read_json(path)
    version = data.get("attemper_policy")
    if "policy" not in data or version is None:
        raise FileError(f"{path} holds no policy: a file that attemper.save_policy wrote is accepted")
    if version != VERSION:
        raise FileError(f"{path} is of version {version!r}, and this attemper reads version {VERSION}")
    try:
        return _read("policy", data["policy"])
    except (FileError, ArgumentError) as error:
        raise FileError(f"{path} is damaged: {error}") from error


def _written(place: str, policy: Policy) -> dict[str, Any]:
    if type(policy) not in FIELDS:
        accepted = f"a policy of this package ({choices(KINDS)})"
        raise ArgumentError(place, policy if isinstance(policy, type) else type(policy), accepted)
    values: dict[str, Any]
    if isinstance(policy, PerHead):
        default = policy.default
        values = {
            "policies": [
                {"layer": layer, "head": head, "policy": _written(f"{place}[{layer}, {head}]", each)}
                for (layer, head), each in policy.policies.items()
            ],
            "default": None if default is None else _written(f"{place}.default", default),
        }
    else:
        values = {name: getattr(policy, name) for name in FIELDS[type(policy)]}
    if isinstance(policy, SSMax) and isinstance(policy.scale, Tensor):
        values = {"scale": _written_tensor(policy.scale)}
        # what a scale has learned may have become what no file may hold
        SSMax(policy.scale)
    return {"kind": type(policy).__name__, **values}


def _written_tensor(tensor: Tensor) -> dict[str, Any]:
    learned = isinstance(tensor, nn.Parameter)
    return {"values": tensor.tolist(), "dtype": str(tensor.dtype).removeprefix("torch."), "learned": learned}


def _read(place: str, data: Any) -> Policy:
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise FileError(f"{place}: {choices(KINDS)} is accepted as its kind, but {kind!r} came")
    fields = _fields(place, {name: value for name, value in data.items() if name != "kind"}, FIELDS[KINDS[kind]])
    if kind == "PerHead":
        entries, default = fields["policies"], fields["default"]
        if not isinstance(entries, list):
            raise FileError(f"{place}: a list of policies is accepted, but {entries!r} came")
        table = {}
        for number, entry in enumerate(entries):
            there = f"{place}.policies[{number}]"
            parts = _fields(there, entry, ("layer", "head", "policy"))
            key = (parts["layer"], parts["head"])
            if isinstance(key[0], list | dict) or isinstance(key[1], list | dict) or key in table:
                raise FileError(f"{there}: a layer and a head that did not come before are accepted, but {key} came")
            table[key] = _read(there, parts["policy"])
        return PerHead(table, None if default is None else _read(f"{place}.default", default))
    if kind == "SSMax" and isinstance(fields["scale"], dict):
        fields["scale"] = _read_tensor(f"{place}.scale", fields["scale"])
    policy: Policy = KINDS[kind](**fields)
    return policy


def _read_tensor(place: str, data: dict[str, Any]) -> Tensor:
    fields = _fields(place, data, ("values", "dtype", "learned"))
    dtype, learned = fields["dtype"], fields["learned"]
    if not isinstance(dtype, str) or dtype not in DTYPES or not isinstance(learned, bool):
        raise FileError(f"{place}: a dtype ({choices(DTYPES)}) and learned, true or false, are accepted")
    try:
        tensor = torch.tensor(fields["values"], dtype=DTYPES[dtype])
    except (TypeError, ValueError, RuntimeError):
        raise FileError(f"{place}: a list of numbers is accepted as its values") from None
    return nn.Parameter(tensor) if learned else tensor


def _fields(place: str, data: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """`data`, if it is an object with these fields and no others."""
    came = sorted(data) if isinstance(data, dict) else data
    if came != sorted(names):
        raise FileError(f"{place}: the fields {', '.join(names)} are accepted, but {came!r} came")
    return dict(data)
