import json
import platform
import subprocess
import sys

import pytest
import torch

from attemper.errors import ArgumentError, AttemperError, CheckpointError, FileError
from attemper.training import Run, train


def test_a_run_is_read_back_from_its_folder(tiny, tmp_path):
    result = train(tiny(temperature=5.0), tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.options == tiny(temperature=5.0).resolved()
    assert run.result == result == json.loads((tmp_path / "run" / "result.json").read_text())
    assert sorted(file.name for file in run.folder.iterdir()) == [
        ".lock", "metrics.jsonl", "model.safetensors", "options.json", "result.json",
    ]  # fmt: skip
    model = run.model()
    assert not model.training
    from attemper.training.prepare import load_splits

    images = load_splits(run.options)["test"]
    pixels, labels = images.batch(torch.arange(len(images)))
    accuracy = (model(pixels).argmax(1) == labels).double().mean().item()
    assert accuracy == pytest.approx(result["test_accuracy"])
    assert torch.allclose(model.standardise.mean, torch.tensor(load_splits(run.options)["train"].statistics.mean))


def test_a_result_says_how_it_was_made(tiny, tmp_path):
    made = train(tiny(), tmp_path)["made"]
    assert made["options"]["lr"] == 0.02
    assert made["versions"]["torch"] == torch.__version__
    assert made["device"].startswith("cpu")
    assert made["threads"] == 1
    assert made["processes"] == 1
    assert set(made["data"]) == {"train", "test", "shifted"}
    assert made["image_shape"] == [1, 8, 8]
    assert made["classes"] == list("12345")


def test_a_folder_with_another_training_is_refused(tiny, tmp_path):
    train(tiny(), tmp_path)
    with pytest.raises(CheckpointError, match=r"other options: temperature = 1.0 \(now 2.0\), seed = 0 \(now 1\)|seed"):
        train(tiny(temperature=2.0, seed=1), tmp_path)
    again = train(tiny(threads=1, checkpoint_every=3.0), tmp_path)
    assert again == Run(tmp_path).result


def test_a_line_that_was_cut_off_is_no_line(tmp_path):
    run = Run(tmp_path)
    for step in (1, 2, 3):
        run.log({"step": step})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    assert [line["step"] for line in run.metrics] == [1, 2, 3]
    run.forget_after(2)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'


def test_damaged_metrics_are_left_out_and_the_training_goes_on(tmp_path):
    run = Run(tmp_path)
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n\x00\x00\xff\xfe{}\n{}\n[3]\ngarbage\n{"step": 2}\n')
    assert run.metrics == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("name", ["result.json", "options.json"])
@pytest.mark.parametrize("text", ["{}", "[]", "{", '"done"'])
def test_damaged_results_and_options_are_named(tiny, tmp_path, name, text):
    train(tiny(), tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(AttemperError, match=f"{name}|holds a training with other options"):
        train(tiny(), tmp_path)


def test_a_folder_belongs_to_one_process_at_a_time(tiny, tmp_path):
    code = f"""
from pathlib import Path
from attemper.training import Run
with Run({str(tmp_path)!r}).held():
    print("held", flush=True)
    input()
"""
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"held\n"
    with pytest.raises(FileError, match=rf"is being trained by process {other.pid} on {platform.node()}"):
        train(tiny(), tmp_path)
    other.kill()
    other.communicate()
    assert train(tiny(), tmp_path)["status"] == "done"


def test_a_refused_training_leaves_its_folder_free(tiny, tmp_path):
    for wrong in ({"data": "glyfs"}, {"model": "mpl"}, {"shifted": "fog:1"}):
        with pytest.raises(ArgumentError):
            train(tiny(**wrong), tmp_path)
        assert list(tmp_path.iterdir()) in ([], [tmp_path / ".lock"])
    assert train(tiny(), tmp_path)["status"] == "done"


def test_what_is_not_there(tiny, tmp_path):
    run = Run(tmp_path / "none")
    assert run.result is None
    assert run.metrics == []
    with pytest.raises(FileError, match="holds no trained model: its training is not done"):
        run.model()


def test_a_folder_that_cannot_be(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="a file stands there"):
        train(tiny(), tmp_path / "file")
    with pytest.raises(FileError, match=r"cannot make the folder /proc/run"):
        train(tiny(), "/proc/run")
