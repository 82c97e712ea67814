# make demo   set up and run the square wave        make test   set up and run the tests
# make slow   the slow statistical tests            make lint   the linter and the type checker
# make docs   the documentation site, in site/
# make peers  other packages on the same data, each in an environment of its own (hours; benchmarks/peers/)
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test slow lint docs peers clean

demo: $(VENV)/.demo
	@echo "== The paper's square wave, by SVI and by Gibbs sampling =="
	$(BIN)/alps-ppl run models/square_wave.py --engine svi,gibbs --seed 0 --out results/square_wave
	@echo "Look at results/square_wave/figures/."

test: $(VENV)/.dev
	@echo "== Tests (without the slow ones: make slow) =="
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --max-worker-restart 0 --durations=10 -m "not slow"

slow: $(VENV)/.dev
	@echo "== Slow statistical tests and notebooks =="
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --max-worker-restart 0 --durations=40 -m slow

lint: $(VENV)/.dev
	@echo "== Linter and type checker =="
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

docs: $(VENV)/.docs
	@echo "== Documentation site, warnings as errors =="
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Look at site/index.html."

peers: $(VENV)/.demo
	@echo "== Our engines beside other packages =="
	$(BIN)/python -m benchmarks --install .peers
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks peers --out results/peers.json

$(VENV)/bin/python:
	@echo "== Virtual environment in $(VENV) =="
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "alps_ppl needs Python 3.11 or newer; name one, e.g. make demo PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	@echo "== Installing alps_ppl (a minute or two) =="
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[models]"
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	@echo "== Installing alps_ppl and its development tools (a minute or two) =="
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: pyproject.toml | $(VENV)/bin/python
	@echo "== Installing what builds the documentation (a minute or two) =="
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	@touch $@

clean:
	rm -rf $(VENV) .peers .jax_cache results site
