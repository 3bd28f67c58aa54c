# Everything on a machine that has only Python >= 3.11 with pip, and make. `make help` lists the targets.
#
# PYTHON  the interpreter to work with (default python3); Python 3.11 gets jax 0.10.2, 3.12 jax 0.11.2, later ones jax 0.12
# VENV    where its environment goes (default .venv)
# LOCK    the file of versions; LOCK=requirements/py313.txt is jax 0.12 for Python 3.12, too
# ARGS    more arguments for pytest (make test, make check) or for the program (make demo)

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

PY_VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
PY_SUPPORTED := $(shell $(PYTHON) -c 'import sys; print(int(sys.version_info >= (3, 11)))' 2>/dev/null)
LOCK ?= requirements/$(if $(filter 3.11,$(PY_VERSION)),py311,$(if $(filter 3.12,$(PY_VERSION)),py312,py313)).txt

BIN := $(VENV)/bin
# The stamp carries the versions, so another PYTHON or LOCK on the same VENV makes the environment anew.
ENVIRONMENT := $(VENV)/.environment-$(PY_VERSION)-$(basename $(notdir $(LOCK)))
INSTALLED := $(VENV)/.installed
# Directories too: a deleted file changes only the time of its directory.
SOURCES := $(shell find alpa_cfp patches benchmarks/alpa_cfp_bench -name __pycache__ -prune -o -print) setup.py pyproject.toml
PIP := $(BIN)/python -m pip --disable-pip-version-check
# A process a core. Tests of one case stay together: it is compiled once a process (tests/conftest.py).
PYTEST := $(BIN)/pytest -q --numprocesses=auto --maxprocesses=8 --dist=loadgroup

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test check quick thorough bench reference format lint types unit integration compatible cluster targets gpu clean interpreter

help: ## what can be made
	@echo "make TARGET [PYTHON=python3.12] [VENV=.venv-3.12] [ARGS='-k name']"
	@grep -E '^[a-z]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z]+):.*## (.*)/  \1\t\2/' | expand -t 16

interpreter:
ifeq ($(PY_VERSION),)
	@echo "make: '$(PYTHON)' cannot be run. Name a Python 3.11 or later: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 1
else ifneq ($(PY_SUPPORTED),1)
	@echo "make: '$(PYTHON)' is Python $(PY_VERSION), which is too old: 3.11 or later is needed, since no JAX that this project supports runs on it. Name another: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 1
endif

$(ENVIRONMENT): $(LOCK) requirements/alpa.txt | interpreter
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --quiet --requirement $(LOCK)
	$(PIP) install --quiet --no-deps --requirement requirements/alpa.txt
	@touch $@

# Not editable: tests see what a user gets, the startup file included. What an earlier build left would get into the wheel.
$(INSTALLED): $(ENVIRONMENT) $(SOURCES)
	@rm -rf build alpa_cfp.egg-info
	$(PIP) install --quiet --no-deps --no-build-isolation --force-reinstall .
	@rm -rf build alpa_cfp.egg-info
	@touch $@

venv: $(INSTALLED) ## the environment with the project and alpa installed

# Its profiles are kept beside it, so a second demo plans at once.
demo: $(INSTALLED) ## CFP beside Alpa's ILP and plans by hand: a GPT on 8 virtual CPU devices; writes demo/
	@mkdir -p demo
	$(BIN)/alpa-cfp bench --model gpt --mesh 2x4 --database demo/profiles.sqlite \
		--json demo/demo.json --picture demo/demo.png --save-plan demo/plan.json $(ARGS)

# Not gpu: its tests only skip where there is none, and are run by name where there is one.
test: lint types unit integration cluster targets ## everything: format, lint, types, all tests that need no GPU

check: lint types quick ## what is quick of `make test` (about 3 minutes)

quick: $(INSTALLED) ## unit tests that compile little
	$(PYTEST) -m "not slow and not gpu and not ray" tests/unit $(ARGS)

lint: $(INSTALLED) ## ruff: format and lint; import contracts; the page that says how old results are
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/python -m benchmarks.ages --check

types: $(INSTALLED) ## basedpyright
	$(BIN)/basedpyright --pythonpath $(BIN)/python

# What depends most on the version of JAX, for a version beside the two that are tested in full.
compatible: $(INSTALLED) ## a selection of tests for one more version of JAX (about 3 minutes)
	$(PYTEST) -m "not slow and not gpu and not ray" tests/unit/alpa_cfp/jit tests/unit/alpa_cfp/spmd/compile \
		tests/unit/alpa_cfp/analysis/test_no_collectives.py $(ARGS)
	$(PYTEST) tests/integration/test_islands.py tests/integration/test_without_alpa.py $(ARGS)

# Integration tests are a process of their own: what they compile does not fill the memory of the others.
unit: $(INSTALLED) ## unit tests, and oracles: numbers from elsewhere
	$(PYTEST) -m "not thorough" tests/unit $(wildcard tests/oracles) $(ARGS)

integration: $(INSTALLED) ## parallel programs against the serial run
	$(PYTEST) -m "not thorough" tests/integration $(ARGS)

thorough: $(INSTALLED) ## what `make test` leaves out: the same laws for larger models and more meshes (tests/thorough.py)
	$(PYTEST) -m thorough tests/unit tests/integration $(ARGS)

# They wait more than they compute. Each process has a cluster of its own.
cluster: $(INSTALLED) ## tests on a Ray cluster of two nodes, which they start on this machine
	$(BIN)/pytest -q --numprocesses=2 --dist=loadfile tests/ray $(ARGS)

# The compilers alone, beside the environment: with them in it, every start of JAX would look for GPUs and TPUs.
PLUGINS := $(VENV)/plugins

$(PLUGINS): $(ENVIRONMENT) tools/target_plugins.py
	@rm -rf $@
	$(BIN)/python tools/target_plugins.py > $(VENV)/plugins.txt
	$(PIP) install --quiet --no-deps --target $@ --requirement $(VENV)/plugins.txt
	@touch $@

targets: $(INSTALLED) $(PLUGINS) ## plans for GPUs and TPUs that are not here, by their compilers (1 GB)
	PYTHONPATH=$(abspath $(PLUGINS)) JAX_PLATFORMS=cpu $(BIN)/pytest -q --numprocesses=2 --dist=loadfile \
		tests/targets tests/unit/alpa_cfp/targets/test_topology.py $(ARGS)

gpu: $(INSTALLED) ## tests on a GPU (JAX_PLATFORMS=cuda make gpu), skipped where there is none
	$(BIN)/pytest -q -m gpu tests/gpu $(ARGS)

# Modules of the package benchmarks/ that are programs; they measure the models of alpa_cfp_bench.workloads.
bench: $(INSTALLED) ## all benchmarks; they print what they measured
	@set -e; for program in $(basename $(notdir $(shell grep -l 'runner.parser(' benchmarks/*.py))); do \
		echo "== benchmarks.$$program"; $(BIN)/python -m benchmarks.$$program $(ARGS); done

reference: $(INSTALLED) ## docs/reference.md from docstrings and the commands' help
	$(BIN)/python tools/reference_page.py docs/reference.md

format: $(INSTALLED) ## rewrite the sources in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove environments and everything built
	rm -rf .venv .venv-* build dist demo alpa_cfp.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
