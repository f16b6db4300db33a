import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import attemper as at
from attemper.errors import ArgumentError, DataError

shapes = st.tuples(st.integers(1, 30), st.integers(1, 6))
rows = hnp.arrays(np.float64, shapes, elements=st.floats(-1e3, 1e3))


def assert_moments(moments, rows):
    scale = max(1.0, np.abs(rows).max())
    assert moments.count == len(rows)
    np.testing.assert_allclose(moments.mean, rows.mean(0), atol=1e-12 * scale)
    np.testing.assert_allclose(
        moments.covariance, np.cov(rows.T, bias=True).reshape(moments.covariance.shape), atol=1e-9 * scale**2
    )
    np.testing.assert_allclose(moments.second_moment, rows.T @ rows / len(rows), atol=1e-9 * scale**2)


@given(rows, st.integers(1, 7))
def test_batches_add_up_to_the_whole(rows, batch):
    moments = at.Moments(rows.shape[1])
    for part in torch.from_numpy(rows).split(batch):
        assert moments.update(part) is moments
    assert_moments(moments, rows)


@given(rows, st.integers(0, 30), st.integers(0, 30), st.permutations(range(3)))
def test_shards_merge_in_any_order(rows, first, second, order):
    data = torch.from_numpy(rows)
    cuts = sorted((min(first, len(rows)), min(second, len(rows))))
    shards = [at.Moments(rows.shape[1]) for _ in range(3)]
    for shard, part in zip(shards, data.tensor_split(cuts), strict=True):
        for few in part.split(2):  # so that sums about the shard's shift are not zero
            shard.update(few)
    merged = at.Moments(rows.shape[1])
    for i in order:
        assert merged.merge(shards[i]) is merged
    assert_moments(merged, rows)


def test_a_large_mean_costs_no_digits():
    rows = torch.randn(1000, 3, dtype=torch.float64) + 1e8
    moments = at.Moments(3).update(rows[:10]).update(rows[10:])
    exact = np.cov((rows - 1e8).numpy().T, bias=True)
    np.testing.assert_allclose(moments.covariance, exact, rtol=1e-7, atol=1e-9)


def test_float32_rows_are_summed_in_float64():
    rows = torch.randn(100_000, 2) + 100
    exact = np.cov(rows.double().numpy().T, bias=True)
    moments = at.Moments(2)
    for part in rows.split(1000):
        moments.update(part)
    np.testing.assert_allclose(moments.covariance, exact, rtol=1e-12)


def test_merging_nothing_changes_nothing_and_merging_into_nothing_copies():
    rows = torch.randn(5, 2)
    moments, before = at.Moments(2).update(rows), at.Moments(2).update(rows).covariance
    assert torch.equal(moments.merge(at.Moments(2)).covariance, before)
    copy = at.Moments(2).merge(moments)
    copy.update(rows)
    assert torch.equal(moments.covariance, before)
    assert (moments.count, copy.count) == (5, 10)
    assert at.Moments(2).update(rows[:0]).count == 0


def test_a_state_goes_on():
    rows = torch.randn(20, 3)
    first = at.Moments(3).update(rows[:10])
    second = at.Moments(3)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.update(rows[10:]).covariance, first.update(rows[10:]).covariance)
    with pytest.raises(ArgumentError, match=r"^state: products of \(2, 2\) is accepted"):
        at.Moments(2).load_state_dict(first.state_dict())


def test_processes_add_up(tmp_path):
    script = tmp_path / "two.py"
    script.write_text("""
import torch, attemper as at
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
rows = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
mine = at.Moments(4)
if rank == 0:
    mine.update(rows[:17]).update(rows[17:])  # the other process has nothing
mine.all_reduce()
both = at.Moments(4).update(rows[:20] if rank == 0 else rows[20:]).all_reduce()
exact = at.Moments(4).update(rows)
for moments in (mine, both):
    assert moments.count == 50
    torch.testing.assert_close(moments.mean, exact.mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(moments.covariance, exact.covariance, rtol=0, atol=1e-12)
print("agreed")
torch.distributed.destroy_process_group()
""")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.count("agreed") == 2, done.stderr
    moments = at.Moments(1).update(torch.ones(3, 1))
    assert moments.all_reduce() is moments
    assert moments.count == 3


def test_what_is_refused():
    with pytest.raises(ArgumentError, match="^width: a whole number from 1 is accepted, but 0 came"):
        at.Moments(0)
    with pytest.raises(ArgumentError, match=r"^batch: a tensor \(n, 2\) is accepted, but torch.Size\(\[4, 3\]\) came"):
        at.Moments(2).update(torch.zeros(4, 3))
    with pytest.raises(ArgumentError, match="^other: Moments of width 2 is accepted, but Moments.width=3"):
        at.Moments(2).merge(at.Moments(3))
    for call in (at.Moments(2).update, at.Moments(2).merge):
        with pytest.raises(ArgumentError, match="is accepted, but 3 came"):
            call(3)
    for value in (math.nan, math.inf):
        with pytest.raises(DataError, match="^batch: finite numbers are accepted"):
            at.Moments(2).update(torch.tensor([[1.0, value]]))
    for field in ("mean", "covariance"):
        with pytest.raises(DataError, match="no row has been added"):
            getattr(at.Moments(2), field)
