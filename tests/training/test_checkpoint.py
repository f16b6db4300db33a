import hashlib
import json

import pytest
import torch
from torch import nn

from attemper.errors import CheckpointError
from attemper.training import checkpoint


def trained(steps=3, kind=torch.optim.SGD, width=4, **settings):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2))
    optimizer = kind(model.parameters(), lr=0.1, **settings)
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(8, 3)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(torch.optim.SGD, {}), (torch.optim.SGD, {"momentum": 0.9, "fused": True}), (torch.optim.AdamW, {"fused": True})],
)
def test_what_is_restored_goes_on_in_the_same_way(tmp_path, kind, settings):
    model, optimizer = trained(3, kind, **settings)
    checkpoint.save(tmp_path, 3, model, optimizer, {"loss_sum": 0.1})
    other, other_optimizer = trained(0, kind, **settings)
    assert checkpoint.restore(tmp_path, other, other_optimizer) == {"loss_sum": 0.1, "step": 3}
    checkpoint.remove(tmp_path)
    for pair in ((model, optimizer), (other, other_optimizer)):
        torch.manual_seed(2)
        for _ in range(3):
            step(*pair)
    for ours, theirs in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_latest_stays_alone(tmp_path):
    model, optimizer = trained()
    for number in (9, 10, 1_000_000_000):
        checkpoint.save(tmp_path, number, model, optimizer, {})
        assert [int(path.name) for path in tmp_path.iterdir()] == [number]
    assert checkpoint.restore(tmp_path, model, optimizer) == {"step": 1_000_000_000}


def test_it_is_safetensors_and_json(tmp_path):
    from safetensors.torch import load_file

    model, optimizer = trained(momentum=0.9)
    checkpoint.save(tmp_path, 3, model, optimizer, {"warnings": ["x"]})
    (folder,) = tmp_path.iterdir()
    state = json.loads((folder / "state.json").read_text())
    assert state.pop("sha256") == hashlib.sha256((folder / "tensors.safetensors").read_bytes()).hexdigest()
    assert state == {"warnings": ["x"], "step": 3}
    tensors = load_file(folder / "tensors.safetensors")
    assert torch.equal(tensors["modules.0.weight"], model[0].weight)
    assert "optimizer.0.momentum_buffer" in tensors


def test_where_there_is_none(tmp_path):
    assert checkpoint.restore(tmp_path / "none", *trained()) is None
    (tmp_path / ".000000003.unfinished").mkdir()
    assert checkpoint.restore(tmp_path, *trained()) is None


def test_another_model_is_refused_and_left_as_it_is(tmp_path):
    checkpoint.save(tmp_path, 3, *trained(width=4), {})
    model, optimizer = trained(width=5)
    before = model[0].weight.clone()
    message = r"is a checkpoint of another model: 0.bias has shape \(4,\) there and \(5,\) here"
    with pytest.raises(CheckpointError, match=message):
        checkpoint.restore(tmp_path, model, optimizer)
    assert torch.equal(model[0].weight, before)
    with pytest.raises(CheckpointError, match=r"another model: 1.bias has shape \(4,\) there and none here"):
        checkpoint.restore(tmp_path, nn.Sequential(nn.Linear(3, 4)), optimizer)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("tensors.safetensors", lambda data: data[:-50]),
        ("tensors.safetensors", lambda data: data[:-4] + bytes(4)),
        ("tensors.safetensors", lambda data: None),
        ("state.json", lambda data: b"{}"),
        ("state.json", lambda data: b"[]"),
        ("state.json", lambda data: data[:-3]),
        ("state.json", lambda data: None),
    ],
)
def test_damage_is_named(tmp_path, file, damage):
    checkpoint.save(tmp_path, 3, *trained(momentum=0.9), {"step": 3})
    path = tmp_path / "000000003" / file
    damaged = damage(path.read_bytes())
    path.unlink() if damaged is None else path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"000000003 is damaged .* delete it to start anew"):
        checkpoint.restore(tmp_path, *trained())
