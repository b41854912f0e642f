# Every target makes .venv by itself when it is missing; nothing has to run before.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# pip compiles on one core; compileall uses them all, and passes over what is no Python. It
# begins while pip waits for the network. The tests of other packages stay as they are.
PIP := $(BIN)/pip install --quiet --no-compile --constraint constraints.txt
COMPILE := $(BIN)/python -m compileall -qq --workers 0 -x /tests/ $(VENV)/lib

# Tests start hundreds of processes: each module is compiled once, not once per process.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-all test-torch test-ecosystem test-recipes check bench map proto clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(COMPILE) & $(PIP) --editable '.[dev]'
	$(COMPILE) || true
	touch $(STAMP)

demo: setup
	$(BIN)/ringleader demo

# Three workers for each core of the smallest machine: tests wait for networks and clocks.
test: setup
	$(BIN)/python -m pytest -n 6 --dist worksteal -m "not slow"

test-all: setup
	$(BIN)/python -m pytest -n 6 --dist worksteal

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

# Lightning, Accelerate and others in an environment of their own, two real ranks each.
ECOSYSTEM := .venv-ecosystem
PIP_ECOSYSTEM := $(ECOSYSTEM)/bin/pip install --quiet --constraint constraints.txt

test-ecosystem: $(ECOSYSTEM)/.installed
	$(ECOSYSTEM)/bin/python -m pytest -o faulthandler_timeout=0 tests/ecosystem

$(ECOSYSTEM)/.installed: pyproject.toml constraints.txt tests/ecosystem/requirements.txt
	$(PYTHON) -m venv $(ECOSYSTEM)
	$(PIP_ECOSYSTEM) torch
	$(PIP_ECOSYSTEM) --requirement tests/ecosystem/requirements.txt --editable .
	-$(PIP_ECOSYSTEM) 'ray[train]>=2.60'  # no wheel on some platforms: its tests are skipped
	-$(PIP_ECOSYSTEM) --no-build-isolation 'deepspeed>=0.19'  # likewise
	touch $@

# The files of examples/recipes, by the packages of the systems that read them.
RECIPES := .venv-recipes

test-recipes: $(RECIPES)/.installed
	$(RECIPES)/bin/python -m pytest --noconftest -c /dev/null --rootdir . tests/recipes

$(RECIPES)/.installed: tests/recipes/requirements.txt
	$(PYTHON) -m venv $(RECIPES)
	$(RECIPES)/bin/pip install --quiet --requirement tests/recipes/requirements.txt
	touch $@

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: setup
	$(BIN)/ringleader bench --out benchmarks/results

map: setup
	$(BIN)/python -m tests.kit.architecture_map

# The messages and stubs of gRPC, which are committed; a test compares them.
proto: setup
	cd proto && find ringleader -name '*.proto' | xargs ../$(BIN)/python -m grpc_tools.protoc \
		-I . --python_out=../src --pyi_out=../src --grpc_python_out=../src

clean:
	rm -rf $(VENV) .venv-torch-* $(ECOSYSTEM) build dist
