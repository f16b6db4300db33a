import json
import math
from pathlib import Path

import pytest

from attemper.errors import ArgumentError
from attemper.training import Options


def test_what_depends_on_the_model_or_the_data_is_filled_in():
    def resolved(**settings):
        options = Options(**settings).resolved()
        return options.optimizer, options.lr, options.lr_rule, options.weight_decay

    assert resolved() == ("sgd", 0.02, "sqrt", 0.0)
    assert resolved(model="resnet18") == ("sgd", 0.1, "sqrt", 1e-4)
    assert resolved(model="vgg16", lr=0.5) == ("sgd", 0.5, "sqrt", 1e-4)
    assert resolved(model="vit-tiny") == ("adamw", 0.001, "plain", 0.05)
    assert resolved(model="mlp", optimizer="adam", weight_decay=0.1) == ("adam", 0.02, "plain", 0.1)
    assert resolved(lr_rule="times-temperature")[2] == "times-temperature"
    assert [Options(data=data).resolved().augment for data in ("glyphs", "cifar100", "folder:x")] == [
        "none", "crop-flip", "crop-flip",
    ]  # fmt: skip
    assert [Options(data=data).resolved().shifted for data in ("glyphs", "cifar10")] == ["own", "noise:3"]


def test_resolving_twice_changes_nothing():
    once = Options(model="vit-small", temperature=3.0).resolved()
    assert once.resolved() == once


def test_they_go_through_json():
    options = Options(root=Path("/data"), milestones=(0.3, 0.6), temperature=10.0)
    assert Options(**json.loads(json.dumps(options.model_dump(mode="json")))) == options


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("temperature", 0, "a number greater than 0"),
        ("temperature", -1.0, "a number greater than 0"),
        ("temperature", math.nan, "a finite number"),
        ("temperature", math.inf, "a finite number"),
        ("temperature", "hot", "a valid number"),
        ("temperature", True, "a valid number"),
        ("epochs", 0, "a number greater than or equal to 1"),
        ("epochs", 1.5, "a valid integer"),
        ("momentum", 1.0, "a number less than 1"),
        ("lr", 0.0, "a number greater than 0"),
        ("lr_rule", "square", "'plain', 'sqrt' or 'times-temperature'"),
        ("seed", -1, "a number greater than or equal to 0"),
        ("seed", 2**63, "a number less than 9223372036854775808"),
        ("threads", 10**9, "a number less than or equal to 4096"),
        ("width_multiplier", 1e300, "a number less than or equal to 1000000"),
        ("optimizer", "lion", "'sgd', 'adam' or 'adamw'"),
    ],
)
def test_values_refused(name, value, accepted):
    with pytest.raises(ArgumentError) as refused:
        Options(**{name: value})
    assert str(refused.value) == f"{name}: {accepted} is accepted, but {value!r} came"


def test_an_unknown_option_is_told_its_nearest():
    with pytest.raises(ArgumentError, match="^options: 'temperature', perhaps, is accepted, but 'temprature' came"):
        Options(temprature=1.0)
    with pytest.raises(ArgumentError, match=r"^options: one of data, .*, checkpoint_every is accepted, but 'xyzzy'"):
        Options(xyzzy=1.0)


def test_a_schedule_and_its_end_belong_together():
    with pytest.raises(ArgumentError, match="^temperature_end: a number is accepted, but None came"):
        Options(temperature_schedule="cosine")
    for schedule in ("constant", "learned"):
        with pytest.raises(ArgumentError, match="^temperature_end: none with temperature_schedule"):
            Options(temperature_schedule=schedule, temperature_end=1.0)
