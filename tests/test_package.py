import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import attemper as at

ROOT = Path(__file__).parents[1]


def in_a_new_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_importing_it_loads_nothing_heavy():
    heavy = "torch numpy pandas matplotlib rich tyro pydantic PIL"
    code = f"import sys, attemper; print([m for m in {heavy.split()!r} if m in sys.modules])"
    assert in_a_new_process(code) == "[]"


def test_every_public_name_is_there():
    assert {"softmax", "entropy", "TemperedCrossEntropy", "Learned", "schedules", "data", "models"} <= set(at.__all__)
    assert {"attention", "attention_statistics", "RowStatistics", "adaptive_softmax", "tempering"} <= set(at.__all__)
    assert {"watching", "huggingface", "dispersion", "PerHead", "save_policy", "load_policy"} <= set(at.__all__)
    policies = {"Constant", "Adaptive", "EntropyTarget", "LogLength", "SSMax", "Yarn", "Llama4", "CriticalScale"}
    assert policies <= set(at.__all__)
    for name in at.__all__:
        assert getattr(at, name) is not None
    for room, names in ((at.data, {"load", "describe", "corrupt"}), (at.models, {"build"})):
        assert names <= set(dir(room))
        for name in dir(room):
            assert getattr(room, name) is not None


NAMES = (
    "at.softmax.__name__",
    "at.data.load.__name__",
    "at.models.build.__name__",
    "at.attention.__name__",
    "at.dispersion.__name__",
    "at.huggingface.temper.__name__",
)
FIRST = (
    "import attemper.knob.softmax",
    "import attemper.data.load",
    "import attemper.models.build",
    "at.softmax",
    "import attemper.attention",
    "import attemper.attention.functional",
    "import attemper.attention.dispersion",
    "from attemper.attention import huggingface",
    "at.attention",
    "at.huggingface",
    "at.dispersion",
    "at.attention_statistics; import attemper.attention.huggingface",
)


@pytest.mark.parametrize(
    ("first", "order"),
    # a process each: they take a second
    [(first, NAMES[:: 1 if number % 2 else -1]) for number, first in enumerate(FIRST)],
    ids=FIRST,
)
def test_a_name_is_the_function_whatever_was_imported_before(first, order):
    code = f"import attemper as at; {first}; print({', '.join(order)})"
    expected = ["softmax", "load", "build", "attention", "dispersion", "temper"]
    assert in_a_new_process(code).split() == (expected if order == NAMES else expected[::-1])


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="sofmax"):
        _ = at.sofmax


def test_the_package_says_what_the_project_file_says():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == at.__version__
    assert project["requires-python"] == ">=3.11"
    assert "torch>=2.11" in project["dependencies"]
    assert (Path(at.__file__).parent / "py.typed").exists()
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_the_constraints_pin_all_that_is_asked_for_and_no_build_of_torch():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"] + [one for extra in project["optional-dependencies"].values() for one in extra]
    names = {one.split(">")[0] for one in asked if not one.startswith("attemper")}
    assert names <= set(pins)
    assert pins["torch"] == "2.13.0"
    assert not any("+" in version for version in pins.values())


def test_rooms_import_only_what_stands_before_them():
    may = {
        "knob": set(),
        "attention": {"knob"},
        "gauge": {"knob"},
        "models": {"knob"},
        "data": set(),
        "training": {"knob", "gauge", "models", "data"},
    }
    source = Path(at.__file__).parent
    for room, others in may.items():
        for file in (source / room).rglob("*.py"):
            imported = {
                line.split()[1] for line in file.read_text().splitlines() if line.lstrip().startswith("from ..")
            }
            rooms = {name.lstrip(".").split(".")[0] for name in imported} & {*may, "cli"}
            assert rooms <= others, f"{file} imports {rooms - others}"
