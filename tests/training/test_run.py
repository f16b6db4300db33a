import json

import pytest
import torch

from attemper.errors import CheckpointError, FileError
from attemper.training import Run, train


def test_a_run_is_read_back_from_its_folder(tiny, tmp_path):
    result = train(tiny(temperature=5.0), tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.options == tiny(temperature=5.0).resolved()
    assert run.result == result == json.loads((tmp_path / "run" / "result.json").read_text())
    assert sorted(file.name for file in run.folder.iterdir()) == [
        "metrics.jsonl", "model.safetensors", "options.json", "result.json",
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


def test_what_is_not_there(tiny, tmp_path):
    run = Run(tmp_path / "none")
    assert run.result is None
    assert run.metrics == []
    with pytest.raises(FileError, match="holds no trained model"):
        run.model()


def test_a_folder_that_cannot_be(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="a file stands there"):
        train(tiny(), tmp_path / "file")
    with pytest.raises(FileError, match=r"cannot make the folder /proc/run"):
        train(tiny(), "/proc/run")
