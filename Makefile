# Two commands do everything from an empty clone: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint docs clean

demo: $(VENV)/.installed  ## Install, fetch SmolLM2, score a dozen prompts on a circuit of it.
	mkdir -p demo
	$(BIN)/eics models fetch smollm2
	$(BIN)/eics score --model smollm2 --circuit facts-by-hand --prompts examples/facts.jsonl --preset both \
		--mode lanczos --out demo/scores.jsonl --picture demo/scores.png
	@echo "Records: demo/scores.jsonl. Picture: demo/scores.png. The paper's own figure: $(BIN)/eics toy --out demo"

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
