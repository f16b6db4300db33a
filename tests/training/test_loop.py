import json
import math
import os
import signal
import subprocess
import sys
import warnings

import pytest
import torch
from safetensors.torch import load_file

import attemper as at
from attemper.errors import ArgumentError, CheckpointError
from attemper.training import Options, Run, loop, train

# trains in a process of its own, which writes a byte for every step it has taken
TRAIN = """
import sys, json, os, torch
torch.set_num_threads(1)
from attemper.training import Options, train, loop
taken = loop.Training.take_step
def take_step(self, *arguments):
    taken(self, *arguments)
    os.write(1, b".")
loop.Training.take_step = take_step
train(Options(**json.loads(sys.argv[1])), sys.argv[2])
"""


def steps_taken(options, out, *, kill_after=None, command=("-c", TRAIN)):
    """Trains in a process, killed once it has taken `kill_after` steps; how many it took."""
    process = subprocess.Popen(
        [sys.executable, *command, options.model_dump_json(), str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    taken = process.stdout.read(kill_after) if kill_after else b""
    if kill_after:
        process.kill()
    rest, said = process.communicate()
    assert process.returncode == (-signal.SIGKILL if kill_after else 0), said.decode()
    return (taken + rest).count(b".")


def assert_same_run(ours, theirs):
    for name in ("metrics.jsonl", "model.safetensors", "options.json"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    results = [Run(folder).result for folder in (ours, theirs)]
    for result in results:
        del result["seconds"]
    assert results[0] == results[1]


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "mlp", "batch_norm": True, "augment": "crop", "clip": 1.0},
        {"optimizer": "adamw", "lr": 0.01, "temperature": 3.0, "temperature_schedule": "learned"},
        {"model": "vgg11", "width_multiplier": 0.02, "size": 70, "depth": None, "width": None},  # it has dropout
    ],
)
def test_a_run_killed_again_and_again_ends_as_one_that_was_not(tiny, tmp_path, settings):
    options = tiny(epochs=40, checkpoint_every=0.0, log_every=7, evaluate_every=5, **settings)
    if options.model == "vgg11":
        options = options.replaced(epochs=4)
    steps = 3 * options.epochs
    assert steps_taken(options, tmp_path / "whole") == steps
    taken = 0
    for more in (steps // 10, steps // 3, 1, steps // 3):
        taken += steps_taken(options, tmp_path / "killed", kill_after=more)
        assert not (tmp_path / "killed" / "result.json").exists()
    taken += steps_taken(options, tmp_path / "killed")
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    # a kill can lose the one step that its checkpoint had not yet kept
    assert steps <= taken <= steps + 4


def test_between_checkpoints_no_more_is_lost_than_lies_between_them(tiny, tmp_path, monkeypatch):
    options = tiny(epochs=10, checkpoint_every=3600.0)
    train(options, tmp_path / "whole")
    real, taken = loop.Training.take_step, []

    def interrupted(self, *arguments):
        if len(taken) == 20:
            raise KeyboardInterrupt
        taken.append(self.state.step)
        real(self, *arguments)
        if self.state.step == 15:
            self.saved -= 7200  # as if two hours had passed

    monkeypatch.setattr(loop.Training, "take_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(options, tmp_path / "broken")
    monkeypatch.undo()
    resumed = []
    monkeypatch.setattr(loop.Training, "take_step", lambda self, *a: (resumed.append(self.state.step), real(self, *a)))
    train(options, tmp_path / "broken")
    assert taken == list(range(20))
    assert resumed == list(range(15, 30))
    assert_same_run(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_asked_to_stop_it_loses_no_step(tiny, tmp_path, monkeypatch, name):
    options = tiny(epochs=10, log_every=4, checkpoint_every=3600.0)
    train(options, tmp_path / "whole")
    real, taken = loop.Training.take_step, []

    def take_step(self, *arguments):
        real(self, *arguments)
        taken.append(self.state.step)
        if taken == list(range(1, 15)):
            os.kill(os.getpid(), getattr(signal, name))

    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr(loop.Training, "take_step", take_step)
    with pytest.raises(KeyboardInterrupt):
        train(options, tmp_path / "stopped")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    train(options, tmp_path / "stopped")
    assert taken == list(range(1, 31))
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.filterwarnings("ignore:After 3 of 3 steps")
def test_the_caller_s_random_state_changes_nothing(tiny, tmp_path):
    """Not in a network with dropout either."""
    options = tiny(model="vgg11", width_multiplier=0.02, size=70, depth=None, width=None, epochs=1)
    for seed in (0, 1):
        torch.manual_seed(seed)
        train(options, tmp_path / str(seed))
    assert_same_run(tmp_path / "0", tmp_path / "1")


def test_every_step_draws_its_own_augmentation(tiny, tmp_path, monkeypatch):
    real, keys = loop.generator, []
    monkeypatch.setattr(loop, "generator", lambda *key: (keys.append(key), real(*key))[1])
    train(tiny(augment="crop"), tmp_path)
    drawn = [key for key in keys if "augment" in key]
    assert len(drawn) == len(set(drawn)) == 6
    assert len({real(*key).initial_seed() for key in drawn}) == 6


@pytest.mark.parametrize("damage", [{"step": "3"}, {"extra": 1}, {"loss_sum": None}])
def test_a_state_that_is_none_is_refused(tiny, tmp_path, monkeypatch, damage):
    options = tiny(checkpoint_every=0.0)
    monkeypatch.setattr(loop.Training, "conclude", lambda self, diverged_at=None: {})
    train(options, tmp_path)
    (file,) = (tmp_path / "checkpoints").glob("*/state.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | damage))
    with pytest.raises(CheckpointError, match="checkpoints is damaged"):
        train(options, tmp_path)


def test_batch_norm_of_single_images_is_refused(tiny, tmp_path):
    with pytest.raises(ArgumentError, match="^batch_size: two images a process at least, with batch norm, is accepted"):
        train(tiny(batch_norm=True, batch_size=1), tmp_path)


def test_checkpoints_that_take_long_to_write_are_written_less_often(tiny, tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(loop.time, "monotonic", lambda: clock[0])
    real_step, saved = loop.Training.take_step, []

    def take_step(self, *arguments):
        real_step(self, *arguments)
        clock[0] += 1.0

    def save(folder, step, *arguments):
        saved.append(step)
        clock[0] += 0.19  # 2 % of 9.5 s

    monkeypatch.setattr(loop.Training, "take_step", take_step)
    monkeypatch.setattr(loop.checkpoint, "save", save)
    train(tiny(epochs=12, checkpoint_every=2.0), tmp_path)
    assert saved == [2, 12, 22, 32]


def test_a_training_does_not_go_on_with_other_data(tiny, tmp_path, monkeypatch):
    from PIL import Image

    for i in range(8):
        file = tmp_path / "data" / ("test" if i > 5 else "train") / "ab"[i % 2] / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (9, 9), 30 * i).save(file)
    folder = f"folder:{tmp_path}/data"
    options = tiny(data=folder, classes=None, per_class=None, shifted="none", batch_size=2, checkpoint_every=0.0)
    monkeypatch.setattr(loop.Training, "evaluate_now_and_then", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        train(options, tmp_path / "run")
    monkeypatch.undo()
    Image.new("L", (90, 90), 7).save(tmp_path / "data" / "train" / "a" / "0.png")
    with pytest.raises(CheckpointError, match="was trained on data with the fingerprint .* bring those data back"):
        train(options, tmp_path / "run")


def test_a_training_that_is_done_is_not_trained_again(tiny, tmp_path, monkeypatch):
    result = train(tiny(), tmp_path)
    monkeypatch.setattr(loop.Training, "take_step", lambda *a: pytest.fail("trained again"))
    assert train(tiny(), tmp_path) == result


@pytest.mark.parametrize(
    "settings", [{}, {"augment": "crop-flip", "temperature": 10.0, "temperature_schedule": "learned"}]
)
@pytest.mark.filterwarnings("ignore:After 3 of 12 steps")
def test_two_processes_give_what_one_gives(tiny, tmp_path, settings):
    options = tiny(epochs=4, batch_size=20, shifted="noise:2", **settings)
    train(options, tmp_path / "one")
    script = tmp_path / "two.py"
    script.write_text(TRAIN)
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script))
    assert steps_taken(options, tmp_path / "two", command=command) == 2 * 12
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-5)
    first, second = Run(tmp_path / "one"), Run(tmp_path / "two")
    assert second.result["made"]["processes"] == 2
    for name in ("train_loss", "test_loss", "shifted_loss", "logits_norm", "test_accuracy", "solution_rank"):
        assert second.result[name] == pytest.approx(first.result[name], rel=1e-3), name
    assert [line["step"] for line in second.metrics] == [line["step"] for line in first.metrics]
    for ours, theirs in zip(second.metrics, first.metrics, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)


def test_a_batch_that_processes_cannot_share_is_refused(tiny, tmp_path):
    from attemper.training.parallel import Processes

    with pytest.raises(ArgumentError, match="^batch_size: a multiple of the 3 processes is accepted, but 20 came"):
        loop.Training(tiny().resolved(), Run(tmp_path), torch.device("cpu"), Processes(1, 3))


def test_it_trains_as_a_plain_loop_does(tiny, tmp_path):
    """The same training by hand: order, rate, momentum, decay, temperature."""
    options = tiny(
        temperature=4.0, lr=0.05, lr_rule="times-temperature", weight_decay=0.01, label_smoothing=0.1
    ).resolved()
    train(options, tmp_path)
    splits = loop.load_splits(options)
    images = splits["train"]
    model = loop.build_model(options, (1, 8, 8), 5)
    model.standardise.set(*images.statistics)
    velocity = [torch.zeros_like(p) for p in model.parameters()]
    for step in range(6):
        order = loop.permutation(60, 0, step // 3)[20 * (step % 3) : 20 * (step % 3 + 1)]
        pixels, labels = images.batch(order)
        loss = torch.nn.functional.cross_entropy(model(pixels) / 4, labels, label_smoothing=0.1)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        rate = 0.05 * 4 * (1 + math.cos(math.pi * step / 6)) / 2
        with torch.no_grad():
            for p, v, g in zip(model.parameters(), velocity, gradients, strict=True):
                v.mul_(0.9).add_(g + 0.01 * p)
                p.sub_(rate * v)
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_metrics_come_with_their_step_rate_and_temperature(tiny, tmp_path):
    seen = []
    options = tiny(
        epochs=4, log_every=2, evaluate_every=2, temperature=9.0, temperature_schedule="linear", temperature_end=1.0,
        lr=0.01, lr_rule="plain", lr_schedule="constant",
    )  # fmt: skip
    train(options, tmp_path, lambda *report: seen.append(report))
    lines = Run(tmp_path).metrics
    losses = [line for line in lines if "loss" in line]
    assert [line["step"] for line in losses] == [2, 3, 4, 6, 8, 9, 10, 12]
    assert [line["epoch"] for line in losses[:2]] == [0.6667, 1.0]
    assert losses[0]["temperature"] == pytest.approx(9 - 8 / 12)
    assert {line["lr"] for line in losses} == {0.01}
    assert seen == [(line["step"], 12, line["loss"]) for line in losses]
    assert [line["step"] for line in lines if "test_accuracy" in line] == [6, 12]
    result = Run(tmp_path).result
    assert lines[-1] == {"step": 12, "epoch": 4.0} | {name: result[name] for name in lines[-1] if name in result}
    assert {"train_accuracy", "shifted_loss", "solution_rank"} <= set(lines[-1])
    assert result["final_temperature"] == 1.0


def test_the_random_state_of_the_caller_stays(tiny, tmp_path):
    before = torch.get_rng_state()
    train(tiny(), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_clipping_bounds_the_step(tiny, tmp_path):
    options = tiny(epochs=1, batch_size=60, clip=1e-3, momentum=0.0, lr=1.0, lr_rule="plain", lr_schedule="constant")
    train(options, tmp_path)
    start_ = loop.build_model(options.resolved(), (1, 8, 8), 5)
    moved = [(a - b).norm() for a, b in zip(Run(tmp_path).model().parameters(), start_.parameters(), strict=True)]
    assert torch.stack(moved).norm().item() == pytest.approx(1e-3, rel=1e-3)


def test_a_training_that_diverges_stops_at_once_and_is_recorded(tiny, tmp_path):
    result = train(tiny(epochs=50, lr=1e6, lr_rule="plain", depth=4), tmp_path)
    assert result["status"] == "diverged"
    assert 1 < result["diverged_at"] < 15
    assert result["steps"] == result["diverged_at"]
    assert f"no longer finite at step {result['diverged_at']} of 150" in result["message"]
    assert Run(tmp_path).result == result
    assert not (tmp_path / "model.safetensors").exists()
    assert train(tiny(epochs=50, lr=1e6, lr_rule="plain", depth=4), tmp_path) == result
    json.loads((tmp_path / "result.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_weights_lost_in_the_very_last_step_are_seen(tiny, tmp_path, monkeypatch):
    real = loop.Training.take_step

    def spoiled(self, *arguments):
        real(self, *arguments)
        if self.state.step == self.steps:
            torch.nn.init.constant_(self.objective.model.classifier.bias, math.nan)

    monkeypatch.setattr(loop.Training, "take_step", spoiled)
    result = train(tiny(), tmp_path)
    assert result["status"] == "diverged"
    assert result["diverged_at"] == 6


def test_a_training_that_stalls_is_warned_about(tiny, tmp_path):
    options = tiny(epochs=10, temperature=1e6, lr_rule="plain", log_every=1)
    with pytest.warns(UserWarning, match="After 3 of 30 steps the loss is 1.6094, that of guessing among 5 classes"):
        result = train(options, tmp_path / "stalled")
    assert result["status"] == "done"
    assert len(result["warnings"]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert train(tiny(epochs=10, log_every=1), tmp_path / "trains")["warnings"] == []


def test_a_learned_temperature_is_learned(tiny, tmp_path):
    train(tiny(epochs=20, temperature=5.0, temperature_schedule="learned"), tmp_path)
    found = [line["temperature"] for line in Run(tmp_path).metrics if "temperature" in line]
    assert abs(found[-1] - 5.0) > 0.1
    assert Run(tmp_path).result["final_temperature"] == pytest.approx(found[-1])


def test_mixed_precision_is_close_to_single(tiny, tmp_path):
    single = train(tiny(epochs=3), tmp_path / "single")
    half = train(tiny(epochs=3, precision="bfloat16"), tmp_path / "half")
    assert half["train_loss"] != single["train_loss"]
    assert half["train_loss"] == pytest.approx(single["train_loss"], rel=0.05)
    assert {t.dtype for t in load_file(tmp_path / "half" / "model.safetensors").values()} == {torch.float32}


def test_every_split_is_evaluated_and_the_logits_measured(tiny, tmp_path):
    result = train(tiny(epochs=30), tmp_path)
    images = loop.load_splits(tiny().resolved())["train"]
    logits = Run(tmp_path).model()(images.batch(torch.arange(60))[0]).detach()
    assert result["logits_norm"] == pytest.approx(logits.norm(dim=1).mean().item(), rel=1e-5)
    for suffix, threshold in (("", 1e-3), ("_1e-2", 1e-2), ("_1e-4", 1e-4)):
        assert result[f"solution_rank{suffix}"] == at.numerical_rank(logits, threshold)
    assert result["train_accuracy"] == 1.0
    assert result["test_accuracy"] > 0.5
    assert 0.3 < result["shifted_accuracy"] < result["test_accuracy"]
    assert result["initial_logits_norm"] > 0


@pytest.mark.parametrize("model", ["vgg11", "resnet20", "vit-tiny"])
def test_every_architecture_learns_a_few_images_by_heart(tiny, tmp_path, model):
    width = 0.34 if model == "vit-tiny" else 0.25
    options = tiny(model=model, depth=None, width=None, width_multiplier=width, epochs=60, per_class=4, shifted="none")
    assert train(options, tmp_path)["train_accuracy"] == 1.0


def test_the_solution_rank_falls_with_temperature_and_both_fit(tmp_path):
    """With the defaults: claims A1 and A3 of the first paper, on two seeds."""

    def defaults(temperature, seed):
        return Options(temperature=temperature, seed=seed, evaluate_every=0, shifted="none", device="cpu")

    for seed in (0, 1):
        cold, hot = (train(defaults(T, seed), tmp_path / f"{seed}-{T}") for T in (1.0, 100.0))
        assert min(cold["train_accuracy"], hot["train_accuracy"]) > 0.99
        assert hot["solution_rank"] < 0.8 * cold["solution_rank"]
        assert hot["logits_norm"] > 20 * cold["logits_norm"]
