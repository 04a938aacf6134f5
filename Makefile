# Two commands do everything from a bare clone: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check docs format clean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.core: pyproject.toml benchmarks/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c constraints.txt -e '.[cli]' -e ./benchmarks
	@touch $@

$(VENV)/.dev: pyproject.toml benchmarks/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c constraints.txt -e '.[dev,neural]' -e ./benchmarks
	@touch $@ $(VENV)/.core

$(VENV)/.docs: pyproject.toml benchmarks/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c constraints.txt -e '.[docs,neural,points]' -e ./benchmarks
	@touch $@ $(VENV)/.core

demo: $(VENV)/.core  ## Install, then run the built-in example and leave a page to open
	$(BIN)/thalweg demo --out out/demo

test: $(VENV)/.dev  ## Install, then run the tests
	$(BIN)/python -m pytest -q -n 2

test-slow: $(VENV)/.dev  ## The tests that take minutes
	$(BIN)/python -m pytest -q -m slow

check: $(VENV)/.dev  ## ruff, mypy and the layer contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.docs  ## Build the documentation site, running every example
	$(BIN)/mkdocs build --strict

format: $(VENV)/.dev  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove the virtual environment and everything generated
	rm -rf $(VENV) out site .pytest_cache .mypy_cache .ruff_cache .hypothesis
