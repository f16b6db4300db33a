import json
import re
import subprocess
import sys

import pytest

from attemper import cli
from attemper.training.options import Options

TINY = [
    "--classes",
    "5",
    "--per-class",
    "12",
    "--size",
    "8",
    "--width",
    "16",
    "--depth",
    "2",
    "--batch-size",
    "20",
    "--epochs",
    "2",
    "--device",
    "cpu",
]


@pytest.fixture
def attemper(monkeypatch, capsys):
    """Runs a command here: (exit status, standard output, standard error)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["attemper", *map(str, arguments)])
        monkeypatch.setattr(cli, "console", cli.Console(width=120))
        try:
            cli.main()
            status = 0
        except SystemExit as stop:
            status = stop.code
        return status, *capsys.readouterr()

    return run


def in_a_new_process(*arguments):
    command = [sys.executable, "-m", "attemper", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_demo_shows_the_rank_falling_as_temperature_rises():
    done = in_a_new_process("demo")
    assert done.returncode == 0, done.stderr
    rows = [re.findall(r"[\d.e+]+", line) for line in done.stdout.splitlines() if line.startswith("│")]
    assert [row[0] for row in rows] == ["1", "10", "100"]
    train, test, shifted, norm, rank = (tuple(float(row[i]) for row in rows) for i in range(1, 6))
    assert min(train) > 0.99
    assert all(s < t for s, t in zip(shifted, test, strict=True))
    assert rank[0] > rank[1] > rank[2]
    assert norm[0] < norm[1] < norm[2]
    said = " ".join(done.stdout.split())
    ranks = " -> ".join(f"{value:.0f}" for value in rank)
    assert (
        f"From T = 1 to T = 100 the solution rank falls, {ranks} directions for 100 classes, and the logits grow"
        in said
    )


def test_training_leaves_a_run_and_prints_its_table(attemper, tmp_path):
    status, out, _ = attemper("train", "--out", tmp_path / "run", "--temperature", 10, *TINY)
    assert status == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["made"]["options"]["temperature"] == 10
    row = next(line for line in out.splitlines() if line.startswith("│"))
    assert f"{result['test_accuracy']:.3f}" in row
    assert row.split()[-2] == str(result["solution_rank"])
    assert "done, 6 steps" in out


def test_help_shows_every_option_in_its_group_with_its_default():
    done = in_a_new_process("train", "--help")
    assert done.returncode == 0
    for group in ("data", "model", "temperature", "optimisation", "running"):
        assert f"{group} options" in done.stdout
    for name in Options.model_fields:
        assert f"--{name.replace('_', '-')} " in done.stdout
    assert "(default: 1.0)" in done.stdout
    assert "(default: cosine)" in done.stdout


def test_the_command_line_has_not_grown_unseen(attemper):
    assert set(cli.COMMANDS) == {"demo", "train", "data", "dispersion"}
    assert len(Options.model_fields) == 36
    assert attemper("--help")[0] == 0


def test_data_are_listed_and_told_about(attemper, tmp_path):
    _, out, _ = attemper("data", "--root", tmp_path)
    for name in ("glyphs", "digits", "fashion-mnist", "cifar10", "cifar100", "svhn", "folder:PATH", "hub:NAME"):
        assert any(line.startswith(f" {name} ") or line.startswith(f"{name} ") for line in out.splitlines()), name
    status, out, _ = attemper("data", "glyphs", "--split", "novel")
    assert status == 0
    assert "glyphs, novel: 2650 images of 1x20x20, 53 classes" in out
    assert "∀" in out
    assert re.search(r"fingerprint [0-9a-f]{16}\n", out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--temperature", "0"], "temperature: a number greater than 0 is accepted"),
        (["--temperature", "nan"], "temperature: a finite number is accepted"),
        (["--temperature", "hot"], "could not convert string to float"),
        (["--model", "resnet19"], "resnet18 .the nearest., or one of mlp"),
        (["--model", "vit-tiny", "--depth", "3"], "depth: nothing beside vit-tiny"),
        (["--data", "cifra10"], "did you mean 'cifar10'"),
        (["--data", "cifar10", "--root", "/nowhere"], "CIFAR-10 is not there: looked for data_batch_1.bin"),
        (["--data", "digits", "--classes", "3"], "options of digits: seed is accepted, but 'classes' came"),
        (["--shifted", "fog:9"], "kind: one of noise, blur"),
        (["--device", "cuda:7"], "device: a device that torch can use here"),
        (["--tempratur", "1"], "Perhaps you meant:"),
        (["--device", "meta"], "device: a device that torch can use here"),
        (["--seed", str(10**30)], "seed: a number less than 9223372036854775808"),
        (["--width", "1000000000"], "torch cannot do this here: .* memory"),
        (["--temperature-schedule", "linear"], "temperature_end: a number is accepted, but None came"),
    ],
)
def test_what_is_refused_exits_with_2_and_one_message(tmp_path, attemper, arguments, said):
    status, _, error = attemper("train", "--out", tmp_path / "run", *arguments)
    assert status == 2
    assert re.search(said, " ".join(error.replace("│", " ").split()))
    assert "Traceback" not in error


def test_a_temperature_that_changed_is_shown_with_both_its_ends(tmp_path, attemper):
    schedule = ["--temperature", 100, "--temperature-schedule", "linear", "--temperature-end", 2]
    _, out, _ = attemper("train", "--out", tmp_path, *TINY, *schedule)
    assert "│ 100 to 2 │" in out


def test_the_list_of_data_fits_a_narrow_terminal():
    done = in_a_new_process("data")
    for name in ("fashion-mnist", "folder:PATH", "hub:NAME"):
        assert f"{name} " in done.stdout


def test_of_several_processes_one_speaks(attemper, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert attemper("data") == (0, "", "")
    assert attemper("data", "glyfs") == (2, "", "")


def test_a_full_disk_is_said(tmp_path, monkeypatch, attemper):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    status, _, error = attemper("train", "--out", tmp_path, *TINY, "--checkpoint-every", 0)
    assert status == 2
    assert "No space left on device" in error


def test_folders_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for out, said in ((tmp_path / "file", "a file stands there"), ("/proc/run", "cannot make the folder /proc/run")):
        done = in_a_new_process("train", "--out", out, *TINY)
        assert done.returncode == 2
        assert done.stderr.startswith("attemper: ")
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_another_training_in_the_folder(tmp_path, attemper):
    attemper("train", "--out", tmp_path, *TINY)
    status, _, error = attemper("train", "--out", tmp_path, *TINY, "--temperature", 3)
    assert status == 2
    assert "holds a training with other options: temperature = 1.0 (now 3.0). Choose another folder" in error


def test_a_training_that_diverged_exits_with_1(tmp_path, attemper):
    status, _, error = attemper("train", "--out", tmp_path, *TINY, "--epochs", 50, "--lr", 1e7)
    assert status == 1
    assert error.startswith("attemper: diverged. The loss was no longer finite at step ")
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "diverged"


def test_stopping_it_says_how_to_go_on(tmp_path, attemper, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("attemper.training.loop.train", interrupted)
    status, _, error = attemper("train", "--out", tmp_path, *TINY)
    assert status == 130
    assert error == "attemper: stopped; the same command goes on from here\n"
    assert attemper("demo")[::2] == (130, "attemper: stopped\n")


def test_the_conclusion_follows_the_table():
    def results(*ranks):
        return {
            T: {"solution_rank": rank, "train_accuracy": 0.9, "logits_norm": T, "made": {"classes": "abcdefghij"}}
            for T, rank in zip((1.0, 10.0, 100.0), ranks, strict=True)
        }

    assert cli.conclusion(results(9, 5, 2)) == (
        "From T = 1 to T = 100 the solution rank falls, 9 -> 5 -> 2 directions for 10 classes, "
        "and the logits grow 100-fold, while every network fits at least 90.0% of its training data."
    )
    assert "the solution rank does not fall steadily, 9 -> 5 -> 5 directions" in cli.conclusion(results(9, 5, 5))
