# Every target makes .venv by itself when it is missing; nothing has to run before.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests start hundreds of processes: each module is compiled once, not once per process.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-all test-torch check bench map clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/ringleader demo

# A worker more than the smallest machine has cores: tests wait for networks and clocks.
test: setup
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow"

test-all: setup
	$(BIN)/python -m pytest -n 3 --dist worksteal

# With another torch, in an environment of its own: make test-torch VERSION=2.14.1
VERSION ?= 2.15.0
TORCH_BIN := .venv-torch-$(VERSION)/bin
TORCH_TESTS := tests/torch tests/unit/backend tests/integration/backend tests/integration/parallel

.venv-torch-%/.installed: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet torch==$*
	$(@D)/bin/pip install --quiet torch==$* --editable '.[dev]'
	touch $@

test-torch: .venv-torch-$(VERSION)/.installed
	$(TORCH_BIN)/python -m pytest -n 2 --dist worksteal $(TORCH_TESTS)
	$(TORCH_BIN)/python -m tests.conformance.driver --jobs 2 --within 1200

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: setup
	$(BIN)/ringleader bench --out benchmarks/results

map: setup
	$(BIN)/python -m tests.kit.architecture_map

clean:
	rm -rf $(VENV) .venv-torch-* build dist
