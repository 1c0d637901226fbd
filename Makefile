# make demo    the main job, end to end, on data that comes with the package index
# make test    the whole test suite
# make check   linter and type checker
# Each creates .venv and installs what it needs.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test check clean

demo: $(INSTALLED)
	$(BIN)/python -m generation.single --epochs 4

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[generation,benchmarks,dev]'
	touch $@

clean:
	rm -rf $(VENV) demo
