import sys

import numpy as np
import pytest
import torch
from PIL import Image

from attemper.data import load
from attemper.errors import ArgumentError, DataError, MissingExtraError


@pytest.fixture(autouse=True)
def library(monkeypatch, tmp_path):
    """The datasets library without a network, its cache in the test's folder."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    return datasets


@pytest.fixture
def table(library, draw):
    """images, labels and more columns -> a Dataset of them; its columns are called picture and kind."""

    def make(images, labels, names=("ant", "bee", "cow"), **more):
        kinds = library.ClassLabel(names=list(names))
        features = {"picture": library.Image(), "kind": kinds} | {name: feature for name, (_, feature) in more.items()}
        columns = {"picture": [image if image is None else Image.fromarray(image) for image in images], "kind": labels}
        columns |= {name: values for name, (values, _) in more.items()}
        return library.Dataset.from_dict(columns, features=library.Features(features))

    return make


@pytest.fixture
def pictures(draw):
    return draw(5, 8, 8, 3)


def planes(images):
    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy()).float() / 255


def test_a_saved_set_is_read_pixel_for_pixel(tmp_path, table, pictures, through_loader):
    table(pictures, [2, 0, 1, 1, 0]).save_to_disk(tmp_path / "saved")
    found = load(f"hub:{tmp_path / 'saved'}", "train", size=8)
    read, labels = through_loader(found)
    assert torch.equal(read, planes(pictures))
    assert labels.tolist() == [2, 0, 1, 1, 0]
    assert found.classes == ("ant", "bee", "cow")
    assert load(f"hub:{tmp_path / 'saved'}", "all", size=8).fingerprint == found.fingerprint
    with pytest.raises(ArgumentError, match="split: one of all, train is accepted, but 'test' came"):
        load(f"hub:{tmp_path / 'saved'}", "test")


def test_saved_splits_are_told_apart_and_validation_stands_for_test(tmp_path, library, table, pictures):
    parts = {"train": table(pictures[:3], [0, 1, 2]), "validation": table(pictures[3:], [1, 0])}
    library.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    train, test = (load(f"hub:{tmp_path / 'saved'}", split, size=8) for split in ("train", "test"))
    assert torch.equal(train.batch(torch.arange(3))[0], planes(pictures[:3]))
    assert torch.equal(test.batch(torch.tensor([1, 0]))[0], planes(pictures[[4, 3]]))
    with pytest.raises(ArgumentError, match="split: one of train, validation is accepted, but 'extra' came"):
        load(f"hub:{tmp_path / 'saved'}", "extra")


def test_a_folder_of_parquet_files_is_read(tmp_path, table, pictures, through_loader):
    (tmp_path / "files").mkdir()
    table(pictures, [2, 0, 1, 1, 0]).to_parquet(tmp_path / "files" / "train.parquet")
    table(pictures[:1], [1]).to_parquet(tmp_path / "files" / "test.parquet")
    read, labels = through_loader(load(f"hub:{tmp_path / 'files'}", "train", size=8))
    assert torch.equal(read, planes(pictures))
    assert labels.tolist() == [2, 0, 1, 1, 0]
    assert len(load(f"hub:{tmp_path / 'files'}", "test", size=8)) == 1


def test_a_folder_of_image_files_is_read(tmp_path, pictures, write_image, through_loader):
    for number, name in enumerate(("ant", "bee")):
        write_image(tmp_path / "files" / "train" / name / "1.png", pictures[number])
    found = load(f"hub:{tmp_path / 'files'}", "train", size=8)
    read, labels = through_loader(found)
    assert torch.equal(read[labels.argsort()], planes(pictures[:2]))
    assert found.classes == ("ant", "bee")
    before = found.fingerprint
    write_image(tmp_path / "files" / "train" / "ant" / "1.png", pictures[2, :4])
    assert load(f"hub:{tmp_path / 'files'}", "train", size=8).fingerprint != before
    gone = load(f"hub:{tmp_path / 'files'}", "train", size=8)
    (tmp_path / "files" / "train" / "bee" / "1.png").unlink()
    with pytest.raises(DataError, match=r"bee/1\.png cannot be read: .*No such file"):
        _ = gone.fingerprint


def test_columns_are_named_where_their_type_does_not_tell(tmp_path, library, table, pictures):
    gray = [Image.fromarray(image[:, :, 0]) for image in pictures]
    coarse = ([1, 0, 0, 1, 1], library.ClassLabel(names=["small", "large"]))
    count = ([3, 0, 2, 1, 3], library.Value("int64"))
    words = (["x"] * 5, library.Value("string"))
    more = {"gray": (gray, library.Image()), "coarse": coarse, "count": count, "word": words}
    table(pictures, [2, 0, 1, 1, 0], **more).save_to_disk(tmp_path / "saved")
    name = f"hub:{tmp_path / 'saved'}"
    found = load(name, "train", size=8, image="gray", label="coarse", channels=1)
    assert torch.equal(found[0][0], planes(pictures)[0, :1])
    assert (found.labels.tolist(), found.classes) == ([1, 0, 0, 1, 1], ("small", "large"))
    counted = load(name, "train", image="picture", label="count")
    assert (counted.labels.tolist(), counted.classes) == ([3, 0, 2, 1, 3], ("0", "1", "2", "3"))
    with pytest.raises(
        DataError, match="one column of type Image was expected, found several of them: picture, gray; name"
    ):
        load(name, "train", label="kind")
    with pytest.raises(
        DataError, match="type ClassLabel was expected, found several of them: kind, coarse; name it by la"
    ):
        load(name, "train", image="picture")
    with pytest.raises(
        ArgumentError, match="image: one of the columns picture, kind, gray, coarse, count, word is acc"
    ):
        load(name, "train", image="photo", label="kind")
    with pytest.raises(ArgumentError, match="image: a column of images is accepted, but 'kind' came"):
        load(name, "train", image="kind", label="kind")
    with pytest.raises(DataError, match="'word' was expected to hold whole numbers or a ClassLabel, found Value"):
        load(name, "train", image="picture", label="word")


def test_a_column_called_label_may_hold_plain_numbers(tmp_path, library, pictures):
    features = library.Features({"image": library.Image(), "label": library.Value("uint8")})
    rows = {"image": [Image.fromarray(image) for image in pictures], "label": [4, 0, 1, 2, 4]}
    library.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "saved")
    found = load(f"hub:{tmp_path / 'saved'}", "train")
    assert (found.labels.tolist(), found.classes) == ([4, 0, 1, 2, 4], tuple("01234"))


def test_fingerprint_changes_with_labels_images_and_options(tmp_path, table, pictures, draw):
    larger = [*pictures[:4], draw(9, 9, 3)]
    for number, (images, labels) in enumerate([(pictures, [0] * 5), (pictures, [0, 0, 0, 0, 1]), (larger, [0] * 5)]):
        table(images, labels).save_to_disk(tmp_path / str(number))
    seen = {load(f"hub:{tmp_path / str(number)}", "train").fingerprint for number in range(3)}
    seen |= {load(f"hub:{tmp_path / '0'}", "train", size=8).fingerprint}
    assert len(seen) == 4


def test_what_cannot_be_used_is_refused(tmp_path, library, table, pictures):
    def saved(name, *arguments, **more):
        table(*arguments, **more).save_to_disk(tmp_path / name)
        return f"hub:{tmp_path / name}"

    (tmp_path / "empty").mkdir()
    table([], []).to_parquet(tmp_path / "empty" / "train.parquet")
    with pytest.raises(DataError, match="empty cannot be read: .* no data"):
        load(f"hub:{tmp_path / 'empty'}", "train")
    with pytest.raises(DataError, match="1 rows have no label in the column 'kind'"):
        load(saved("unlabelled", pictures[:2], [0, None]), "train")
    with pytest.raises(DataError, match="labels from -1 to 0, but there are 3 classes"):
        load(saved("hidden", pictures[:2], [0, -1]), "train")
    with pytest.raises(
        DataError, match="split 'train', row 1: an image was expected in the column 'picture', found noth"
    ):
        load(saved("blank", [pictures[0], None], [0, 1]), "train").batch(torch.arange(2))
    library.Dataset.from_dict({"text": ["a"]}).save_to_disk(tmp_path / "text")
    with pytest.raises(DataError, match="one column of type Image was expected, found none among text"):
        load(f"hub:{tmp_path / 'text'}", "train")


def test_bytes_that_are_no_image_are_refused_by_their_row(tmp_path, library):
    features = library.Features({"image": library.Image(), "label": library.ClassLabel(names=["a"])})
    rows = {"image": [{"bytes": b"no image", "path": None}], "label": [0]}
    library.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "saved")
    with pytest.raises(DataError, match="split 'train', row 0 cannot be read as an image: "):
        load(f"hub:{tmp_path / 'saved'}", "train")[0]


def test_damaged_files_are_refused(tmp_path, table, pictures):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "train.parquet").write_bytes(b"junk")
    with pytest.raises(DataError, match="files cannot be read: "):
        load(f"hub:{tmp_path / 'files'}", "train")
    table(pictures, [0] * 5).save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / "state.json").write_text("{")
    with pytest.raises(DataError, match="saved cannot be read: "):
        load(f"hub:{tmp_path / 'saved'}", "train")
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"none cannot be read: .* doesn't contain any data files"):
        load(f"hub:{tmp_path / 'none'}", "train")


def test_a_name_out_of_reach_is_said():
    with pytest.raises(
        DataError, match="hub:no-one/nothing cannot be found as a folder, nor reached on the Hugging Face"
    ):
        load("hub:no-one/nothing", "train")


def test_without_datasets_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"hub:mnist needs datasets: pip install 'attemper\[datasets\]'"):
        load("hub:mnist", "train")


def test_images_are_resized_as_in_a_folder(tmp_path, table, draw, write_image):
    wide = draw(20, 31, 3)
    table([wide], [0]).save_to_disk(tmp_path / "saved")
    write_image(tmp_path / "folder" / "ant" / "1.png", wide)
    image, _ = load(f"hub:{tmp_path / 'saved'}", "train", size=16)[0]
    assert np.array_equal(image, load(f"folder:{tmp_path / 'folder'}", "all", size=16)[0][0])
