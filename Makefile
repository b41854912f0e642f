# Every target makes .venv by itself when it is missing; nothing has to run before.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests start hundreds of processes: each module is compiled once, not once per process.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-all check bench map clean

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

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: setup
	$(BIN)/ringleader bench --out benchmarks/results

map: setup
	$(BIN)/python -m tests.kit.architecture_map

clean:
	rm -rf $(VENV) build dist
