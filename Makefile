# Two commands on a fresh machine: `make demo` and `make test`. Everything lives in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint types messages clean

demo: $(STAMP)
	$(BIN)/allranks demo

test: $(STAMP)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# Carry the English sentences of the code into the Chinese catalogue, and compile it.
messages: $(STAMP)
	$(BIN)/python tools/messages.py

# torch is asked for by its exact version, first and alone: a range would take a build for CUDA, gigabytes larger.
# A catalogue that changed is compiled anew by the same install.
$(STAMP): pyproject.toml hatch_build.py $(wildcard src/allranks/messages/*/LC_MESSAGES/*.po)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q torch==2.13.0
	$(BIN)/python -m pip install -q -e '.[test,dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist
