PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test check bench clean

demo: .venv/ready
	@$(BIN)/attemper demo

test: .venv/ready-to-test
	$(BIN)/python -m pytest

check: .venv/ready-to-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/ready-to-test
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/attention.py

clean:
	rm -rf .venv

# again where an earlier try was interrupted; an environment of yours that stands there is kept
.venv/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "attemper needs Python 3.11 or later: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	@touch $@

# torch first and by its pinned version, so that no other package chooses a build of it
.venv/ready: pyproject.toml constraints.txt | .venv/made
	@echo "Installing attemper and what it needs into .venv (once, some minutes) ..."
	$(PIP) torch
	$(PIP) --editable .
	@touch $@

.venv/ready-to-test: .venv/ready
	@echo "Installing what the tests need into .venv (once) ..."
	$(PIP) --editable '.[dev]'
	@touch $@
