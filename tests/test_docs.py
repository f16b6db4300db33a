import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    (page.name, block) for page in PAGES for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
]


@pytest.mark.parametrize(("page", "code"), BLOCKS, ids=[f"{page}-{i}" for i, (page, _) in enumerate(BLOCKS)])
def test_code_on_a_page_runs(page, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code, page, "exec"), names)
    assert "at" in names or "train" in names


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_option_on_the_pages_is_one():
    from attemper.training import Options

    pages = (ROOT / "docs" / "training.md").read_text() + (ROOT / "README.md").read_text()
    said = set(re.findall(r"--([a-z][a-z-]+)", pages))
    known = {name.replace("_", "-") for name in Options.model_fields} | {"out", "help", "nproc-per-node"}
    assert said <= known
    assert {"temperature", "temperature-schedule"} <= said
