import hashlib

import numpy as np
import pytest
import torch
from PIL import Image

from attemper.data import load
from attemper.errors import ArgumentError, DataError


@pytest.fixture
def pets(tmp_path, draw, write_image):
    """Folders ant, bee and cow of 8 x 8 images in PNG, ten of each; the pixels by file."""
    pixels = {}
    for number, name in enumerate(("bee", "ant", "cow")):
        for i in range(10):
            pixels[f"{name}/{i}.png"] = draw(8, 8, 3, seed=10 * number + i)
    for file, array in pixels.items():
        write_image(tmp_path / "pets" / file, array)
    return tmp_path / "pets", pixels


def test_reads_each_pixel(pets, through_loader):
    folder, pixels = pets
    found = load(f"folder:{folder}", "all", size=8)
    read, labels = through_loader(found)
    expected = np.stack([pixels[file] for file in sorted(pixels)]).transpose(0, 3, 1, 2)
    assert np.array_equal(read.mul(255).round().byte().numpy(), expected)
    assert found.classes == ("ant", "bee", "cow")
    assert labels.tolist() == [0] * 10 + [1] * 10 + [2] * 10


def test_workers_of_a_loader_read_it_too(pets, through_loader):
    images = load(f"folder:{pets[0]}", "all", size=8)
    # threads have decoded here before the workers are forked
    images.batch(torch.arange(20))
    _, labels = through_loader(images, workers=2)
    assert torch.equal(labels, images.labels)


def test_a_path_may_lie_under_the_root(pets):
    folder, _ = pets
    assert load("folder:pets", "all", folder.parent).fingerprint == load(f"folder:{folder}", "all").fingerprint


def test_a_tenth_by_hash_stays_when_files_come(pets, write_image, draw):
    folder, _ = pets
    parts = {split: set(load(f"folder:{folder}", split).files) for split in ("all", "train", "test")}
    assert parts["train"] | parts["test"] == parts["all"]
    assert not parts["train"] & parts["test"]
    for i in range(200):
        write_image(folder / "ant" / f"more{i}.png", draw(2, 2, seed=i))
    train, test = (set(load(f"folder:{folder}", split).files) for split in ("train", "test"))
    assert parts["train"] <= train
    assert parts["test"] <= test
    assert 10 <= len(test) <= 40


def test_folders_of_splits_are_found(tmp_path, write_image, draw, through_loader):
    for file in ("train/a/1.png", "train/b/deeper/2.png", "val/b/3.png"):
        write_image(tmp_path / file, draw(4, 4, 3))
    train, test, val = (load(f"folder:{tmp_path}", split, size=4) for split in ("train", "test", "validation"))
    assert (train.files, train.labels.tolist()) == (["a/1.png", "b/deeper/2.png"], [0, 1])
    # b keeps its number where no a is
    assert (test.files, test.labels.tolist(), test.classes) == (["b/3.png"], [1], ("a", "b"))
    assert val.fingerprint == test.fingerprint
    through_loader(train)
    with pytest.raises(
        ArgumentError, match=r"split: one of train, val \(the folders of .*\) is accepted, but 'all' came"
    ):
        load(f"folder:{tmp_path}", "all")


def test_a_class_may_be_called_train(tmp_path, write_image, draw):
    for file in ("train/1.png", "plane/2.png"):
        write_image(tmp_path / file, draw(4, 4, 3))
    assert load(f"folder:{tmp_path}", "all").classes == ("plane", "train")
    with pytest.raises(ArgumentError, match="split: one of all, train, test"):
        load(f"folder:{tmp_path}", "val")


def test_given_classes_fix_the_numbers(pets):
    folder, _ = pets
    many = ["zebra", "cow", "bee", "ant"]
    found = load(f"folder:{folder}", "all", classes=many)
    assert found.classes == tuple(many)
    assert found.labels.tolist() == [3] * 10 + [2] * 10 + [1] * 10
    assert found.fingerprint != load(f"folder:{folder}", "all").fingerprint
    with pytest.raises(DataError, match="folders that are not among the 1 given classes: bee, cow"):
        load(f"folder:{folder}", "all", classes=["ant"])
    for wrong in ("ant", ["ant", "bee", "cow", "ant"], []):
        with pytest.raises(ArgumentError, match="classes: a sequence of different folder names is accepted"):
            load(f"folder:{folder}", "all", classes=wrong)


def test_the_centre_of_a_wide_image_is_kept(tmp_path, write_image):
    wide = np.zeros((8, 16, 3), np.uint8)
    wide[:, 4:8, 0], wide[:, 8:12, 1] = 200, 100
    write_image(tmp_path / "a" / "wide.png", wide)
    image = (load(f"folder:{tmp_path}", "all", size=8)[0][0] * 255).round()
    assert torch.equal(image[0], torch.tensor([200.0] * 4 + [0] * 4).expand(8, 8))
    assert torch.equal(image[1], torch.tensor([0.0] * 4 + [100] * 4).expand(8, 8))
    write_image(tmp_path / "a" / "wide.png", wide.transpose(1, 0, 2).copy())
    assert torch.equal((load(f"folder:{tmp_path}", "all", size=8)[0][0] * 255).round(), image.mT)


def test_size_averages_and_channels_convert(tmp_path, write_image):
    checks = np.indices((64, 64)).sum(0) % 2 * 255
    write_image(tmp_path / "a" / "checks.png", checks.astype(np.uint8))
    gray, colour = (load(f"folder:{tmp_path}", "all", size=8, channels=channels)[0][0] for channels in (1, 3))
    assert gray.shape == (1, 8, 8)
    assert (gray - 0.5).abs().max() < 0.02
    assert torch.equal(colour, gray.expand(3, -1, -1))


def test_jpeg_is_read_at_a_fraction_of_its_size(tmp_path, write_image):
    ramp = np.linspace(0, 255, 512).astype(np.uint8)
    write_image(tmp_path / "a" / "ramp.jpg", np.stack([np.tile(ramp, (512, 1))] * 3, 2))
    image = load(f"folder:{tmp_path}", "all", size=16)[0][0]
    expected = torch.from_numpy(ramp.reshape(16, 32).mean(1) / 255).float()
    assert (image - expected).abs().max() < 0.02


def test_a_fraction_of_a_jpeg_is_as_good_as_the_whole(tmp_path, draw, write_image):
    path = write_image(tmp_path / "a" / "fine.jpg", draw(256, 256, 3))
    whole = Image.open(path).convert("RGB").resize((64, 64), Image.Resampling.BILINEAR)
    found = load(f"folder:{tmp_path}", "all", size=64)[0][0].permute(1, 2, 0)
    # 0.86 where it is decoded at 64 pixels, not at twice as many
    assert np.corrcoef(found.flatten(), np.asarray(whole).ravel())[0, 1] > 0.95


def test_an_image_stands_as_its_camera_says(tmp_path, draw, write_image):
    pixels = draw(8, 8, 3)
    turned = Image.Exif()
    turned[0x0112] = 6
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels).save(tmp_path / "a" / "turned.png", exif=turned)
    image = load(f"folder:{tmp_path}", "all", size=8)[0][0]
    assert np.array_equal((image * 255).round().numpy(), np.rot90(pixels, -1).transpose(2, 0, 1))


def test_sixteen_bits_are_scaled_not_clipped(tmp_path, write_image):
    deep = (np.arange(64, dtype=np.uint16) * 1000).reshape(8, 8)
    write_image(tmp_path / "a" / "deep.png", deep)
    image = load(f"folder:{tmp_path}", "all", size=8, channels=1)[0][0]
    assert np.array_equal((image[0] * 255).round().numpy(), deep >> 8)


def test_fingerprint_changes_with_files_and_options(pets, write_image, draw):
    folder, _ = pets

    def fingerprint(**options):
        return load(f"folder:{folder}", "all", **options).fingerprint

    seen = [fingerprint(), fingerprint(size=32), fingerprint(channels=1)]
    assert fingerprint() == seen[0]
    write_image(folder / "ant" / "0.png", draw(9, 9, 3))
    seen.append(fingerprint())
    (folder / "ant" / "1.png").rename(folder / "ant" / "1b.png")
    seen.append(fingerprint())
    assert len(set(seen)) == 5


def test_a_file_that_is_gone_has_no_fingerprint(pets):
    folder, _ = pets
    images = load(f"folder:{folder}", "all")
    (folder / "bee" / "3.png").unlink()
    with pytest.raises(DataError, match=r"pets/bee/3\.png cannot be read: .*No such file"):
        _ = images.fingerprint


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n" + bytes(40), b"\xff\xd8\xff\xe0" * 9])
def test_a_file_that_is_no_image_is_refused_by_its_path(pets, content):
    folder, _ = pets
    (folder / "bee" / "broken.png").write_bytes(content)
    images = load(f"folder:{folder}", "all")
    with pytest.raises(DataError, match=r"pets/bee/broken\.png cannot be read as an image: "):
        images.batch(torch.arange(len(images)))


def test_a_truncated_image_is_refused_by_its_path(pets):
    folder, _ = pets
    whole = (folder / "bee" / "0.png").read_bytes()
    (folder / "bee" / "0.png").write_bytes(whole[: len(whole) // 2])
    images = load(f"folder:{folder}", "all")
    with pytest.raises(DataError, match=r"pets/bee/0\.png cannot be read as an image: "):
        images[images.files.index("bee/0.png")]


def test_files_of_other_kinds_are_refused_but_clutter_is_not(pets):
    folder, _ = pets
    (folder / "README.txt").write_text("beside the classes")
    (folder / "ant" / ".DS_Store").write_bytes(b"")
    (folder / "ant" / "Thumbs.db").write_bytes(b"")
    assert len(load(f"folder:{folder}", "all")) == 30
    (folder / "ant" / "list.txt").write_text("")
    (folder / "cow" / "sound.wav").write_text("")
    with pytest.raises(DataError, match=r"ant/list\.txt \(and 1 more such files\) is no image: \.bmp, \.gif"):
        load(f"folder:{folder}", "all")


def test_folders_without_images_are_refused(tmp_path, write_image, draw):
    with pytest.raises(DataError, match=r"folder:gone: there is no such folder; looked for .*gone and .*gone"):
        load("folder:gone", "all", tmp_path)
    with pytest.raises(DataError, match="a folder for each class was expected, found none"):
        load(f"folder:{tmp_path}", "all")
    write_image(tmp_path / "ant" / "1.png", draw(4, 4))
    (tmp_path / "bee").mkdir()
    with pytest.raises(DataError, match="images of the class 'bee' were expected, found none"):
        load(f"folder:{tmp_path}", "all")


def test_a_split_that_gets_nothing_is_refused(tmp_path, write_image, draw):
    file = next(
        f"{n}.png" for n in range(99) if int.from_bytes(hashlib.sha256(f"a/{n}.png".encode()).digest()[:8]) % 10
    )
    write_image(tmp_path / "a" / file, draw(4, 4))
    assert len(load(f"folder:{tmp_path}", "train")) == 1
    with pytest.raises(DataError, match="split 'test': there is no image in it"):
        load(f"folder:{tmp_path}", "test")


@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        ("size", 0, "a whole number from 1"),
        ("size", 8.0, "a whole number from 1"),
        ("size", True, "a whole number from 1"),
        ("channels", 4, "1 or 3"),
    ],
)
def test_options_are_checked(pets, option, value, accepted):
    with pytest.raises(ArgumentError, match=f"{option}: {accepted} is accepted, but {value} came"):
        load(f"folder:{pets[0]}", "all", **{option: value})
