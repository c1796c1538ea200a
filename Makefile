# Two commands do everything from an empty clone: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test browser-test gpu-test lint docs circuits world clean

demo: $(VENV)/.installed  ## Install, reproduce the paper's figure, fetch SmolLM2 and score a dozen prompts on a circuit of it.
	$(BIN)/eics toy --out demo
	$(BIN)/eics models fetch smollm2
	$(BIN)/eics score --model smollm2 --circuit facts --prompts examples/facts.jsonl --preset both \
		--mode fast --curve --out demo/scores.jsonl --picture demo/scores.png --report demo/report.html
	@echo "The paper's figure: demo/toy.png. Scores on SmolLM2: demo/report.html, demo/scores.png, demo/scores.jsonl."

test: $(VENV)/.installed-dev  ## Install and run all tests, the examples of README and docstrings among them.
	$(BIN)/python -m pytest -n 2

browser-test: $(VENV)/.installed-browser  ## The report in a real browser; needs chromium (apt-get install chromium).
	$(BIN)/python -m pytest tests/browser/test_report_page.py

gpu-test: $(VENV)/.installed-dev  ## What only a GPU can show: recordings say what is computed without them.
	$(BIN)/python -m pytest tests/gpu/test_cuda_graphs_gpu.py

lint: $(VENV)/.installed-dev  ## Linters, formatter and type checker, as CI runs them.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	mkdir -p build && $(BIN)/python -c "from eics.reporting.page.build import script; print(script())" > build/report.js
	$(BIN)/oxlint --deny-warnings build/report.js

circuits: $(VENV)/.installed  ## Find and measure the bundled circuits anew; about half an hour on two cores.
	$(BIN)/eics models fetch smollm2
	$(BIN)/python scripts/make_tasks.py
	$(BIN)/python scripts/make_circuits.py

world: $(VENV)/.installed  ## Train the validation world anew and find its two circuits; about five minutes on two cores.
	$(BIN)/python scripts/make_world.py --jobs 2
	$(BIN)/python scripts/make_circuits.py people induction

docs: demo $(VENV)/.installed-browser  ## Make the figures of README and docs anew.
	cp demo/toy.png demo/toy-general.png demo/toy-protocol.png docs/
	cp demo/scores.png docs/facts.png
	$(BIN)/python docs/screenshots.py demo/report.html docs

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

$(VENV)/.installed-browser: $(VENV)/.installed-dev
	$(PIP) --editable '.[dev,browser]'
	touch $@
