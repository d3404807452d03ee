# make demo   set up what is needed, then draw a picture into demo_output/ (about a minute)
# make test   set up what is needed, then run the tests that take seconds each
# make test-all  the same, then all tests but those of the night, slow ones among them
# make test-night  the same, then every test with every call checked, all cases, faults and mutants (hours)
# make fuzz   the same, then odd tables, kernels and settings: each predicts or says what to do
# make fuzz-files  the same, then damaged and hostile model files: each ends in one error
# make mutants  the same, then copies of the package that are broken on purpose: tests should fail
# make typecheck  mypy on typical uses, on the modules that users import, and on the lower layers
# make test-oldest  the tests with the lowest versions of pyproject.toml, in an environment of its own
# make golden write the recorded values of tests/golden again, and print what has changed
# make faults the same, then refits that fail at random places, by exceptions and by signals
#
# Variables:
#   PYTHON       interpreter that creates the environment (3.11 or newer)
#   VENV         where the environment lives; pip reads its own settings there, such as PIP_INDEX_URL
#   WORKERS      test processes; each uses THREADS threads
#   CASES, SEED  how many cases "make fuzz" draws, and from which seed
#   FAULTS       how many faults of each kind "make faults" injects into each estimator's refit
#   GOLDEN_ARGS  arguments of "make golden", such as "-k nngp" and "--measure"
#   MUTANTS      families of mutants for "make mutants", or other arguments of tests/mutants/run.py,
#                such as "--all-killers FILE"; default: all families
#   OLDEST       where that environment lives
#   OLDEST_ARGS  extra arguments of `uv pip install` for it, such as an index of CPU builds of torch
#                and the lowest of them (the workflow "oldest" has one)
#   PYTEST_ARGS  extra arguments of pytest, such as "-k kernels"
#   CHECKED_CALLS  which calls of each function "make test-all" checks against the shapes in its
#                signature: "once" in each process, as "make test" does, a number in each test, or "all"
#   PERTURBED    relative size of a perturbation of all numbers that estimators read in tests, such as
#                1e-12: no test should depend on the last digits
#   ORDER        seed of a random order of the tests: none should need another one before it

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
WORKERS ?= 2
THREADS ?= 1
PYTEST_ARGS ?=
MUTANTS ?=
GOLDEN_ARGS ?=
CASES ?= 2000
SEED ?= 0
FAULTS ?= 25
CHECKED_CALLS ?= once
OLDEST ?= .venv-oldest
OLDEST_ARGS ?=
BENCH_ARGS ?= --estimator IterativeGPRegressor --dataset pol

BIN := $(VENV)/bin
# Compiled modules lie in the environment's folder, also where Python is told to write none: without
# them each process of the tests compiles all that it imports, for several seconds.
TEST_SETTINGS = SCIPY_ARRAY_API=1 OMP_NUM_THREADS=$(THREADS) MKL_NUM_THREADS=$(THREADS) \
	PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(abspath $(VENV))/pycache

# Modules are compiled when they are first imported, which most never are.
INSTALL = $(BIN)/python -m pip install --no-compile -c constraints.txt

# The ordinary build of torch for Linux comes with gigabytes of GPU libraries. PyTorch's own index has
# builds without them, of the same version. On machines without an NVIDIA GPU, torch alone comes from it.
# Where it does not answer within ten seconds, torch comes from the ordinary index like everything else.
CPU_BUILDS := https://download.pytorch.org/whl/cpu
ASK_CPU_BUILDS = import urllib.request; urllib.request.urlopen("$(CPU_BUILDS)/torch/", timeout=10)
define INSTALL_TORCH
test "$$(uname -s)" != Linux || command -v nvidia-smi >/dev/null \
	|| $(BIN)/python -m pip show --quiet torch 2>/dev/null || { \
	echo "Asking $(CPU_BUILDS) for torch (10 seconds at most)"; \
	timeout 10 $(BIN)/python -c '$(ASK_CPU_BUILDS)' 2>/dev/null \
	&& $(INSTALL) --no-deps --retries 0 --timeout 10 --index-url $(CPU_BUILDS) torch \
	|| echo "No answer: torch comes from pip's index, where builds for Linux may bring gigabytes along"; }
endef

# The data sets that some tests need; those tests skip with a reason where there are none.
ifneq ($(wildcard ../shared/data/uci),)
export SKSCALABLEGP_DATA ?= $(abspath ../shared/data)
endif

# Threads that wait give up their core: on a busy machine, spinning ones cost far more than they save.
demo test test-all test-night test-every test-oldest fuzz fuzz-files faults golden mutants doc: export OMP_WAIT_POLICY ?= PASSIVE

# Read by doc/conf.py.
export SKSCALABLEGP_DOC_OFFLINE

.PHONY: help demo test test-all test-night test-every test-oldest fuzz fuzz-files faults golden mutants lint typecheck format doc bench clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 found; name one: make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One stamp for each extra, so that an install is repeated only when its list changes.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Setting up $(VENV) for [$*]. The first time downloads about 400 MB and takes one to three minutes."
	@$(INSTALL_TORCH)
	$(INSTALL) -e ".[$*]"
	@touch $@

demo: $(VENV)/.installed-examples
	@echo "The demo predicts a terrain from 10,000 heights, in less than a minute. Loading libraries ..."
	@mkdir -p demo_output
	@MPLBACKEND=Agg $(BIN)/python -u examples/plot_terrain.py demo_output/terrain.png
	@echo "Next, the picture of the README: $(BIN)/python examples/plot_intervals.py demo_output/intervals.png"
	@echo "A first model of your own: doc/get_started/index.rst. The tests: make test"

test: $(VENV)/.installed-test
	$(TEST_SETTINGS) \
		$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" $(PYTEST_ARGS)

test-all: $(VENV)/.installed-test
	$(TEST_SETTINGS) CHECKED_CALLS=$(CHECKED_CALLS) \
		$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not night" $(PYTEST_ARGS)

# A part that fails does not keep the others from being run.
test-night:
	$(MAKE) --keep-going test-every fuzz fuzz-files faults mutants

test-every: $(VENV)/.installed-test
	$(TEST_SETTINGS) CHECKED_CALLS=all \
		$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-oldest:
	@test -n "$(PYTHON)" || { echo "No Python >= 3.11 found; name one: make PYTHON=..."; exit 1; }
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet uv
	$(OLDEST)/bin/uv pip install --python $(OLDEST)/bin/python --resolution lowest-direct \
		$(OLDEST_ARGS) -e ".[test]"
	$(TEST_SETTINGS) \
		$(OLDEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m "not night" $(PYTEST_ARGS)

fuzz: $(VENV)/.installed-test
	$(TEST_SETTINGS) \
		$(BIN)/python tests/fuzz/run.py --cases $(CASES) --seed $(SEED)

fuzz-files: $(VENV)/.installed-test
	$(TEST_SETTINGS) \
		$(BIN)/python tests/fuzz/files.py --cases $(CASES) --seed $(SEED)

faults: $(VENV)/.installed-test
	FAULTS=$(FAULTS) $(TEST_SETTINGS) \
		$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/contracts/test_faults.py

golden: $(VENV)/.installed-test
	$(TEST_SETTINGS) $(BIN)/python tests/golden/write.py $(GOLDEN_ARGS)

mutants: $(VENV)/.installed-test
	$(TEST_SETTINGS) \
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
