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

# Extract the English sentences, carry them into the Chinese catalogue, compile it.
messages: $(STAMP)
	$(BIN)/pybabel extract -q -k say --no-location --sort-output -o build/allranks.pot src/allranks
	$(BIN)/pybabel update -q -D allranks -i build/allranks.pot -d src/allranks/messages -l zh --no-wrap --omit-header
	$(BIN)/pybabel compile -q -D allranks -d src/allranks/messages

# torch is asked for by its exact version, first and alone: a range would take a build for CUDA, gigabytes larger.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q torch==2.13.0
	$(BIN)/python -m pip install -q -e '.[test,dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist
