# make demo   set up what is needed, then run the main job (a picture lands in demo_output/)
# make test   set up what is needed, then run the test suite
# make fuzz   the same, then odd tables, kernels and settings: each predicts or says what to do
# make mutants  the same, then copies of the package that are broken on purpose: tests should fail
# make typecheck  mypy on typical uses and on the modules that users import
# make test-oldest  the tests with the lowest versions of pyproject.toml, in an environment of its own
# make faults the same, then refits that fail at random places, by exceptions and by signals
#
# Variables:
#   PYTHON       interpreter that creates the environment (3.11 or newer)
#   VENV         where the environment lives
#   PIP_ARGS     extra arguments of `pip install`. pip's default torch for Linux brings GPU libraries
#                along; to be spared them, name torch's own index of CPU builds here with
#                --extra-index-url (the version stays the one in constraints.txt).
#   WORKERS      test processes; each uses THREADS threads
#   CASES, SEED  how many cases "make fuzz" draws, and from which seed
#   FAULTS       how many faults of each kind "make faults" injects into each estimator's refit
#   MUTANTS      families of mutants for "make mutants"; default: all
#   OLDEST       where that environment lives
#   OLDEST_ARGS  extra arguments of `uv pip install` for it, such as an index of CPU builds of torch
#                and the lowest of them (the workflow "oldest" has one)
#   PYTEST_ARGS  extra arguments of pytest, such as "-k kernels"

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
PIP_ARGS ?=
WORKERS ?= 2
THREADS ?= 1
PYTEST_ARGS ?=
MUTANTS ?=
CASES ?= 5000
SEED ?= 0
FAULTS ?= 25
OLDEST ?= .venv-oldest
OLDEST_ARGS ?=
BENCH_ARGS ?= --estimator IterativeGPRegressor --dataset pol

BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt

# The data sets that some tests need; those tests skip with a reason where there are none.
ifneq ($(wildcard ../shared/data/uci),)
export SKSCALABLEGP_DATA ?= $(abspath ../shared/data)
endif

# Threads that wait give up their core: on a busy machine, spinning ones cost far more than they save.
demo test test-oldest fuzz faults mutants doc: export OMP_WAIT_POLICY ?= PASSIVE

# Read by doc/conf.py.
export PLOT SKSCALABLEGP_DOC_OFFLINE

.PHONY: help demo test test-oldest fuzz faults mutants lint typecheck format doc bench clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 found; name one: make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One stamp for each extra, so that an install is repeated only when its list changes.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing the package with [$*] into $(VENV) (some minutes the first time)"
	$(INSTALL) -e ".[$*]"
	@touch $@

demo: $(VENV)/.installed-examples
	@mkdir -p demo_output
	MPLBACKEND=Agg $(BIN)/python -u examples/plot_terrain.py demo_output/terrain.png

test: $(VENV)/.installed-test
	SCIPY_ARRAY_API=1 OMP_NUM_THREADS=$(THREADS) MKL_NUM_THREADS=$(THREADS) \
		$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-oldest:
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 found; name one: make PYTHON=..."; exit 1; }
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet uv
	$(OLDEST)/bin/uv pip install --python $(OLDEST)/bin/python --resolution lowest-direct \
		$(OLDEST_ARGS) -e ".[test]"
	SCIPY_ARRAY_API=1 OMP_NUM_THREADS=$(THREADS) MKL_NUM_THREADS=$(THREADS) \
		$(OLDEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

fuzz: $(VENV)/.installed-test
	SCIPY_ARRAY_API=1 OMP_NUM_THREADS=$(THREADS) MKL_NUM_THREADS=$(THREADS) \
		$(BIN)/python tests/fuzz/run.py --cases $(CASES) --seed $(SEED)

faults: $(VENV)/.installed-test
	FAULTS=$(FAULTS) SCIPY_ARRAY_API=1 OMP_NUM_THREADS=$(THREADS) MKL_NUM_THREADS=$(THREADS) \
		$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/contracts/test_faults.py

mutants: $(VENV)/.installed-test
	SCIPY_ARRAY_API=1 OMP_NUM_THREADS=$(THREADS) MKL_NUM_THREADS=$(THREADS) \
		$(BIN)/python tests/mutants/run.py $(MUTANTS) --workers $(WORKERS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(VENV)/.installed-dev
	$(BIN)/python -m mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

doc: $(VENV)/.installed-doc
	$(BIN)/python -m sphinx -W --keep-going -b html doc doc/_build/html
	$(BIN)/python doc/check_links.py doc/_build/html

bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/uci.py $(BENCH_ARGS)

clean:
	rm -rf build dist doc/_build doc/auto_examples doc/generated demo_output .pytest_cache .ruff_cache .mypy_cache
