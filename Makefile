# Two commands do everything from a bare clone: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip
# Two processes; a file stays with one of them, which compiles what it needs once.
TWO    := -n 2 --dist loadfile
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test notebooks test-slow test-processors test-numerics fuzz check docs format clean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

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
	$(BIN)/python -m pytest -q $(TWO)

notebooks: $(VENV)/.dev  ## Run the notebooks of the documentation
	$(BIN)/python -m pytest -q -m slow tests/docs/test_notebooks.py

test-slow: $(VENV)/.dev  ## The tests that take minutes
	$(BIN)/python -m pytest -q -m slow

# BLAS picks its kernels by the processor, numba its instructions: `generic` is numba's, the others
# are those of OpenBLAS. A processor without AVX-512 cannot run the kernels of one that has it.
define as-processors
@for kind in $(1); do \
	if [ $$kind = SkylakeX ] && ! grep -qs avx512f /proc/cpuinfo; then \
		echo "== $$kind: skipped, this processor has no AVX-512"; continue; fi; \
	echo "== $$kind"; \
	case $$kind in generic) setting=NUMBA_CPU_NAME;; *) setting=OPENBLAS_CORETYPE;; esac; \
	env $$setting=$$kind $(BIN)/python -m pytest -q $(TWO) $(2) || exit 1; \
done
endef

test-processors: $(VENV)/.dev  ## All tests as on five kinds of processor
	$(call as-processors,Prescott Haswell SkylakeX Zen generic,)

test-numerics: $(VENV)/.dev  ## The tests of iterative solvers as on two kinds of processor
	$(call as-processors,Prescott Haswell,-m "numerics and not slow" tests)

fuzz: $(VENV)/.dev  ## 10^4 damaged files of each format through the command line; prints how they ended
	$(BIN)/python tests/hostile/fuzz.py

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
