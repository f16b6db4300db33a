import json
import os
import subprocess
import sys

import pytest

CODE = """
import json, os, sys
import torch
import torch.distributed as dist
from torch import nn
import attemper as at

torch.set_num_threads(1)
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.full((2,), 0.7))

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        learned = at.attention(q, k, v, policy=at.SSMax(self.scale), is_causal=True, softcap=5.0)
        adaptive = at.attention(q, k, v, policy=at.Adaptive())
        return self.out((learned + adaptive).transpose(1, 2).flatten(2))

torch.manual_seed(0)
model = nn.Sequential(Layer(), Layer())
x = torch.randn(4, 9, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
kind = sys.argv[1]
if kind != "alone":
    dist.init_process_group("gloo")
    x = x.chunk(2)[dist.get_rank()]
if kind == "ddp":
    wrapped = nn.parallel.DistributedDataParallel(model)
elif kind == "fsdp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    wrapped = fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
else:
    wrapped = model
for _ in range(2):
    optimizer.zero_grad()
    wrapped(x).square().mean().backward()
    optimizer.step()
whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
if kind == "alone" or dist.get_rank() == 0:
    print(json.dumps([p.detach().flatten().tolist() for p in whole]))
if kind != "alone":
    dist.barrier()
    # gloo's threads race with the end of the interpreter, whatever the model
    sys.stdout.flush()
    os._exit(0)
"""


def trained(kind, tmp_path):
    """The parameters after two steps, of one process or of two that share the batch."""
    file = tmp_path / "train.py"
    file.write_text(CODE)
    launch = [] if kind == "alone" else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *launch, str(file), kind],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_models_wrapped_by_ddp_or_fsdp_learn_the_same(tmp_path):
    alone = trained("alone", tmp_path)
    # the scale of every head of the first layer has moved
    assert max(abs(number - 0.7) for number in alone[0]) > 1e-4
    for kind in ("ddp", "fsdp"):
        shared = trained(kind, tmp_path)
        for ours, theirs in zip(shared, alone, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-5)
