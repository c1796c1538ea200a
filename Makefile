# Two commands do everything from an empty clone: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test slow-test browser-test gpu-test lint docs circuits world clean

demo: $(VENV)/.installed  ## Install, reproduce the paper's figure, fetch SmolLM2, score a dozen prompts on it, and find secret damage.
	@printf '\n1 of 4: the paper'"'"'s figure (half a minute)\n\n'
	$(BIN)/eics toy --out demo --overwrite
	@printf '\n2 of 4: SmolLM2-135M (93 MB, unless it is there already)\n\n'
	$(BIN)/eics models fetch smollm2
	@printf '\n3 of 4: twelve prompts on a circuit of 52 nodes, in both presets (one or two minutes)\n\n'
	$(BIN)/eics score --model smollm2 --circuit facts --prompts examples/facts.jsonl --preset both --mode fast --curve \
		--details --out demo/scores.jsonl --picture demo/scores.png --report demo/report.html --overwrite
	@printf '\n4 of 4: what is usual, learned from 364 prompts; then three of twelve others are tampered with (a minute)\n\n'
	$(BIN)/python scripts/find_the_damage.py --out demo/calibrated
	@printf '\nOpen these:\n  demo/calibrated/report.html  which node of which prompt was tampered with, and what was found\n'
	@printf '  demo/report.html  the scores, prompt by prompt, to click through\n'
	@printf '  demo/scores.png   the same at a glance; demo/scores.jsonl has every number\n'
	@printf '  demo/toy.png      the paper'"'"'s figure\n'
	@printf 'What the numbers mean: docs/what-the-numbers-mean.md\n'

test: $(VENV)/.installed-dev  ## Install and run all tests, including the examples in README and docstrings.
	$(BIN)/python -m pytest -n 2

slow-test: $(VENV)/.installed-dev  ## Run every command in README and docs/, slow ones too, and renew the dates of their last run; downloads 93 MB.
	$(BIN)/python -m pytest tests/slow/test_slow_pages.py

browser-test: $(VENV)/.installed-browser  ## Test the pages in a real browser; needs chromium (apt-get install chromium).
	$(BIN)/python -m pytest tests/browser

gpu-test: $(VENV)/.installed-dev  ## Test what only a GPU can show: replayed CUDA graphs give the same numbers as plain runs.
	$(BIN)/python -m pytest tests/gpu/test_cuda_graphs_gpu.py

lint: $(VENV)/.installed-dev  ## Run linters, formatter and type checker, as CI does.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/write_page_scripts.py build/pages
	$(BIN)/oxlint --deny-warnings build/pages/*.js

circuits: $(VENV)/.installed  ## Rebuild and measure the bundled circuits; about half an hour on two cores.
	$(BIN)/eics models fetch smollm2
	$(BIN)/python scripts/make_tasks.py
	$(BIN)/python scripts/make_circuits.py

world: $(VENV)/.installed  ## Retrain the validation world and find its two circuits; about five minutes on two cores.
	$(BIN)/python scripts/make_world.py --jobs 2
	$(BIN)/python scripts/make_circuits.py people induction

docs: demo $(VENV)/.installed-browser  ## Redraw the figures in README and docs.
	cp demo/toy.png demo/toy-general.png demo/toy-protocol.png docs/
	cp demo/scores.png docs/facts.png
	$(BIN)/python docs/screenshots.py demo/report.html docs

clean:  ## Remove the environment, the demo and the caches.
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch is installed first, so that later packages find it already there.
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
