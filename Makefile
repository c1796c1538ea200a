# Two commands do everything from an empty clone: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint docs clean

demo: $(VENV)/.installed  ## Install, reproduce the paper's figure, score the toy circuit.
	$(BIN)/eics toy --out demo
	$(BIN)/eics score --circuit demo/toy-circuit.safetensors --preset both --out demo/scores.jsonl

test: $(VENV)/.installed-dev  ## Install and run all tests, the examples of README and docstrings among them.
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/.installed-dev  ## Linter, formatter and type checker, as CI runs them.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed  ## Make the README's figure anew.
	$(BIN)/eics toy --out demo --quiet
	cp demo/toy.png docs/toy.png
	cp demo/toy-general.png docs/toy-general.png
	cp demo/toy-protocol.png docs/toy-protocol.png

clean:  ## Remove what the commands above made.
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch goes first: whatever asks for a torch afterwards finds one.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -c "import sys; assert sys.version_info >= (3, 11), 'eics needs Python 3.11 or later: make PYTHON=python3.11'"
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable '.[dev]'
	touch $@
