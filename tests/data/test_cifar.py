import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attemper.data import load
from attemper.errors import ArgumentError, DataError

pytestmark = pytest.mark.filterwarnings("ignore:.* images, the official file")
WORDS = [f"kind {n}" for n in range(100)]


def records(images, *labels):
    """images (n, 3, 32, 32); each of labels (n,)."""
    columns = [np.array(part, np.uint8)[:, None] for part in labels]
    return np.concatenate([*columns, images.reshape(len(images), -1)], 1).tobytes()


def write_ten(folder, images, labels):
    """Image i goes to batch 1 + i % 5; the last image is the test batch."""
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(5):
        (folder / f"data_batch_{n + 1}.bin").write_bytes(records(images[n:-1:5], labels[n:-1:5]))
    (folder / "test_batch.bin").write_bytes(records(images[-1:], labels[-1:]))
    (folder / "batches.meta.txt").write_text("\n".join(WORDS[:10]) + "\n\n")


@pytest.fixture
def ten(tmp_path, draw):
    images = draw(11, 3, 32, 32)
    write_ten(tmp_path / "cifar-10-batches-bin", images, range(11))
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(records(images[-1:], [7]))
    return tmp_path, images


@pytest.fixture
def hundred(tmp_path, draw):
    images, folder = draw(3, 3, 32, 32), tmp_path / "cifar-100-binary"
    folder.mkdir()
    for split in ("train", "test"):
        (folder / f"{split}.bin").write_bytes(records(images, [19, 0, 4], [99, 0, 57]))
    (folder / "fine_label_names.txt").write_text("\n".join(WORDS))
    (folder / "coarse_label_names.txt").write_text("\n".join(WORDS[:20]))
    return tmp_path, images


def test_ten_reads_batches_in_order(ten, through_loader):
    root, images = ten
    train, test = load("cifar10", "train", root), load("cifar10", "test", root)
    order = [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]
    pixels, labels = through_loader(train)
    assert np.array_equal(pixels.mul(255).round().byte().numpy(), images[order])
    assert labels.tolist() == order
    assert np.array_equal(test.images.numpy(), images[-1:])
    assert test.labels.tolist() == [7]
    assert train.classes == test.classes == tuple(WORDS[:10])


def test_planes_are_red_green_blue_and_rows_come_before_columns(ten):
    root, _ = ten
    record = np.zeros(3072, np.uint8)
    record[0], record[1], record[32], record[1024], record[2048 + 33] = 1, 2, 3, 4, 5
    file = root / "cifar-10-batches-bin" / "test_batch.bin"
    file.write_bytes(bytes([6]) + record.tobytes())
    image = load("cifar10", "test", root).images[0]
    places = (image[0, 0, 0], image[0, 0, 1], image[0, 1, 0], image[1, 0, 0], image[2, 1, 1])
    assert [int(value) for value in places] == [1, 2, 3, 4, 5]


def test_root_may_be_the_folder_itself(ten):
    root, _ = ten
    inside = load("cifar10", "train", root / "cifar-10-batches-bin")
    assert inside.fingerprint == load("cifar10", "train", root).fingerprint


@given(labels=st.lists(st.integers(0, 9), min_size=6, max_size=12), seed=st.integers(0, 99))
def test_ten_round_trip(tmp_path_factory, labels, seed):
    images = np.random.default_rng(seed).integers(0, 256, (len(labels), 3, 32, 32), dtype=np.uint8)
    root = tmp_path_factory.getbasetemp() / "cifar-round-trip"
    write_ten(root, images, labels)
    order = [i for n in range(5) for i in range(len(labels))[n:-1:5]]
    found = load("cifar10", "train", root)
    assert np.array_equal(found.images.numpy(), images[order])
    assert found.labels.tolist() == [labels[i] for i in order]


def test_hundred_has_two_labels(hundred, through_loader):
    root, images = hundred
    fine, coarse = load("cifar100", "train", root), load("cifar100", "test", root, labels="coarse")
    assert np.array_equal(fine.images.numpy(), images)
    assert fine.labels.tolist() == [99, 0, 57]
    assert fine.classes == tuple(WORDS)
    assert coarse.labels.tolist() == [19, 0, 4]
    assert coarse.classes == tuple(WORDS[:20])
    through_loader(coarse)
    with pytest.raises(ArgumentError, match="labels: fine or coarse is accepted, but 'both' came"):
        load("cifar100", "train", root, labels="both")


def test_hundred_names_a_label_that_is_out_of_range(hundred):
    root, images = hundred
    (root / "cifar-100-binary" / "test.bin").write_bytes(records(images, [0, 1, 20], [0, 0, 100]))
    with pytest.raises(DataError, match=r"test\.bin: labels from 0 to 99 were expected, found some from 0 to 100"):
        load("cifar100", "test", root)
    with pytest.raises(DataError, match=r"test\.bin: labels from 0 to 19 were expected, found some from 0 to 20"):
        load("cifar100", "test", root, labels="coarse")


@pytest.mark.parametrize("length", [0, 1, 3072, 3074])
def test_part_of_a_record_is_refused(ten, length):
    root, _ = ten
    (root / "cifar-10-batches-bin" / "data_batch_3.bin").write_bytes(bytes(length))
    message = rf"data_batch_3\.bin: a whole number of records of 3073 bytes was expected, found {length} bytes"
    with pytest.raises(DataError, match=message):
        load("cifar10", "train", root)


def test_a_label_out_of_range_is_refused(ten):
    root, images = ten
    (root / "cifar-10-batches-bin" / "data_batch_5.bin").write_bytes(records(images[:1], [10]))
    with pytest.raises(
        DataError, match=r"data_batch_5\.bin: labels from 0 to 9 were expected, found some from 10 to 10"
    ):
        load("cifar10", "train", root)


@pytest.mark.parametrize(
    ("name", "split", "file", "official"),
    [
        ("cifar10", "train", "data_batch_5.bin", 10_000),
        ("cifar10", "test", "test_batch.bin", 10_000),
        ("cifar100", "train", "train.bin", 50_000),
        ("cifar100", "test", "test.bin", 10_000),
    ],
)
def test_a_file_cut_between_two_records_is_said(tmp_path, name, split, file, official):
    width = 3073 if name == "cifar10" else 3074
    for each in ([f"data_batch_{n}.bin" for n in range(1, 6)], ["test_batch.bin", "train.bin", "test.bin"]):
        for other in each:
            (tmp_path / other).write_bytes(bytes(width * official))
    for names, count in (("batches.meta.txt", 10), ("fine_label_names.txt", 100)):
        (tmp_path / names).write_text("\n".join(WORDS[:count]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(name, split, tmp_path)
    (tmp_path / file).write_bytes(bytes(width * 3))
    with pytest.warns(UserWarning, match=f"{file} holds 3 images, the official file {official}$") as caught:
        load(name, split, tmp_path)
    assert [warning.filename for warning in caught] == [__file__]


def test_names_must_be_ten(ten):
    root, _ = ten
    (root / "cifar-10-batches-bin" / "batches.meta.txt").write_text("cat\ndog\n")
    with pytest.raises(DataError, match=r"batches\.meta\.txt: the names of 10 classes were expected, found 2"):
        load("cifar10", "train", root)


def test_one_missing_batch_is_named(ten):
    root, _ = ten
    (root / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    with pytest.raises(
        DataError, match=r"cifar-10-batches-bin has no data_batch_4\.bin\. Get cifar-10-binary\.tar\.gz"
    ):
        load("cifar10", "train", root)
    assert len(load("cifar10", "test", root)) == 1


@pytest.mark.parametrize(("name", "archive"), [("cifar10", "cifar-10-binary"), ("cifar100", "cifar-100-binary")])
def test_a_missing_archive_is_named(tmp_path, name, archive):
    with pytest.raises(DataError, match=rf"Get {archive}\.tar\.gz from https://www\.cs\.toronto\.edu/~kriz/cifar"):
        load(name, "train", tmp_path / "nowhere")
