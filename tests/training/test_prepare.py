import pytest
import torch

from attemper.errors import ArgumentError
from attemper.training import prepare


def at_each(schedule, *places):
    return [schedule(place) for place in places]


def test_the_rule_says_what_temperature_does_to_the_learning_rate(tiny):
    for rule, expected in (("plain", 0.5), ("sqrt", 5.0), ("times-temperature", 50.0)):
        options = tiny(lr=0.5, temperature=100.0, lr_rule=rule, lr_schedule="constant").resolved()
        assert prepare.learning_rate(options)(0.3) == pytest.approx(expected)


def test_the_rate_follows_its_schedule(tiny):
    def rate(**settings):
        return prepare.learning_rate(tiny(lr=1.0, lr_rule="plain", **settings).resolved())

    assert at_each(rate(lr_schedule="step"), 0.0, 0.5, 0.75) == pytest.approx([1, 0.1, 0.01])
    assert at_each(rate(lr_schedule="step", milestones=(0.2,)), 0.1, 0.3) == pytest.approx([1, 0.1])
    assert at_each(rate(lr_schedule="cosine"), 0.0, 0.5, 1.0) == pytest.approx([1, 0.5, 0])
    assert at_each(rate(lr_schedule="one-cycle"), 0.0, 0.3, 1.0) == pytest.approx([0.04, 1, 0])


def test_the_rate_follows_a_temperature_that_changes(tiny):
    options = tiny(lr=1.0, lr_rule="times-temperature", lr_schedule="constant", temperature=9.0)
    cooling = options.replaced(temperature_schedule="linear", temperature_end=1.0).resolved()
    assert at_each(prepare.learning_rate(cooling), 0.0, 0.5, 1.0) == pytest.approx([9, 5, 1])


def test_temperature_schedules(tiny):
    def temperature(**settings):
        return prepare.temperature_schedule(tiny(temperature=100.0, temperature_end=1.0, **settings))

    assert at_each(temperature(temperature_schedule="linear"), 0.0, 0.5, 1.0) == pytest.approx([100, 50.5, 1])
    assert at_each(temperature(temperature_schedule="cosine"), 0.0, 0.5, 1.0) == pytest.approx([100, 50.5, 1])
    assert at_each(temperature(temperature_schedule="step"), 0.0, 0.5, 0.75) == pytest.approx([100, 10, 1])
    assert at_each(prepare.temperature_schedule(tiny(temperature=3.0)), 0.0, 1.0) == [3, 3]


def test_splits_belong_together(tiny):
    splits = prepare.load_splits(tiny().resolved())
    assert {name: len(images) for name, images in splits.items()} == {"train": 60, "test": 250, "shifted": 250}
    assert len({images.classes for images in splits.values()}) == 1
    others = prepare.load_splits(tiny(seed=1).resolved())
    assert len({images.fingerprint for images in (*splits.values(), *others.values())}) == 6


def test_a_corruption_can_be_the_shift(tiny):
    splits = prepare.load_splits(tiny(shifted="contrast:5").resolved())
    assert splits["shifted"].name == "glyphs with contrast of severity 5"
    assert torch.equal(splits["shifted"].labels, splits["test"].labels)
    assert set(prepare.load_splits(tiny(shifted="none").resolved())) == {"train", "test"}
    for wrong in ("contrast", "contrast:", "contrast:x"):
        with pytest.raises(ArgumentError, match="^shifted: 'own', 'none' or KIND:SEVERITY"):
            prepare.load_splits(tiny(shifted=wrong).resolved())
    with pytest.raises(ArgumentError, match="^kind: one of noise, blur"):
        prepare.load_splits(tiny(shifted="fog:1").resolved())


def test_a_folder_s_test_images_are_numbered_as_its_training_images(tiny, tmp_path):
    from PIL import Image

    for name in ("train/a/1", "train/b/1", "train/c/1", "test/c/1"):
        file = tmp_path / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9)).save(file)
    plain = {"classes": None, "per_class": None}
    splits = prepare.load_splits(tiny(data=f"folder:{tmp_path}", **plain).resolved())
    assert splits["test"].classes == splits["train"].classes == ("a", "b", "c")
    assert splits["test"].labels.tolist() == [2]
    assert splits["train"].image_shape == (3, 8, 8)


def test_the_seed_alone_decides_the_first_weights(tiny):
    models = [prepare.build_model(tiny(seed=seed), (1, 8, 8), 5) for seed in (0, 0, 1)]
    weights = [torch.cat([p.flatten() for p in model.parameters()]) for model in models]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_a_learned_temperature_is_trained_and_does_not_decay(tiny, kind):
    options = tiny(temperature=4.0, temperature_schedule="learned", optimizer=kind, weight_decay=0.1).resolved()
    model, loss = prepare.build_model(options, (1, 8, 8), 5), prepare.build_loss(options)
    weights, learned = prepare.build_optimizer(options, model, loss).param_groups
    assert weights["weight_decay"] == 0.1
    assert learned["weight_decay"] == 0
    assert [p.exp().item() for p in learned["params"]] == pytest.approx([4.0])


def test_augmentation_is_what_the_options_say(tiny):
    images = torch.rand(64, 1, 8, 8)

    def augmented(kind):
        return prepare.build_augment(tiny(augment=kind))(images, torch.Generator().manual_seed(0))

    assert prepare.build_augment(tiny(augment="none")) is None
    same, mirrored = augmented("flip") == images, augmented("flip") == images.flip(3)
    assert (same.flatten(1).all(1) ^ mirrored.flatten(1).all(1)).all()
    assert not torch.equal(augmented("crop"), augmented("crop-flip"))
