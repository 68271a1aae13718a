# make demo: install and run the demo.  make test: install everything and run the tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
# Further options of pytest: make test ARGS="-m 'not slow' tests/ops"
ARGS ?=

# One thread a process: two processes with two threads each fight for the same cores.
TEST_ENVIRONMENT := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 NO_ALBUMENTATIONS_UPDATE=1

.PHONY: demo test lint format clean

demo: $(VENV)/.core
	$(BIN)/vision3d demo

test: $(VENV)/.dev
	$(TEST_ENVIRONMENT) $(BIN)/python -m pytest -n 2 $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis vision3d_demo vision3d_out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamp files: a repeated call installs nothing.
$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "vision3d needs Python 3.10 or later: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.torch: constraints.txt $(VENV)/.python
	$(PIP) install --quiet -c constraints.txt torch
	touch $@

$(VENV)/.core: pyproject.toml $(VENV)/.torch
	$(PIP) install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.torch
	$(PIP) install --quiet -c constraints.txt -e ".[dev]"
	touch $@ $(VENV)/.core
