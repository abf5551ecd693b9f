# One virtual environment serves every target. The oldest supported one is:
#   make test VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt EXTRAS=test
# EXTRAS=test leaves out `cluster`, whose datatrove needs newer libraries than the oldest ones, and `ray`.

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
EXTRAS ?= test,cluster,ray,faiss,mteb,onnx
PYTEST_ARGS ?=
# Tests run in so many processes, each with one thread.
TEST_PROCESSES ?= 2

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install style quality audit test test-slow demo demo-gur clean

define CHECK_PYTHON
import importlib.util, sys
version = "%d.%d" % sys.version_info[:2]
if sys.version_info < (3, 10):
    sys.exit("This project needs Python 3.10 or newer; $(PYTHON) is " + version + ". Try: make PYTHON=python3.11")
if sys.version_info < (3, 11) and "$(notdir $(CONSTRAINTS))" == "constraints.txt":
    sys.exit("constraints.txt needs Python 3.11 or newer; $(PYTHON) is " + version
             + ". Try: make PYTHON=python3.11, or make CONSTRAINTS=constraints-oldest.txt EXTRAS=test")
if any(importlib.util.find_spec(name) is None for name in ("venv", "ensurepip")):
    sys.exit("$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python" + version + "-venv")
endef
export CHECK_PYTHON

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(STAMP)  ## Make .venv and install the package with all extras into it

$(BIN)/python:
	@$(PYTHON) -c "$$CHECK_PYTHON"
	$(PYTHON) -m venv $(VENV)

$(STAMP): setup.py pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c $(CONSTRAINTS) -e ".[$(EXTRAS)]"
	@touch $@

style: $(STAMP)  ## Format the code and fix what ruff can fix
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

quality: $(STAMP)  ## Check format and lint without changing a file
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

audit:  ## Look up known weaknesses of the pinned versions, at pypi.org
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install -qq --disable-pip-version-check pip-audit
	.venv-audit/bin/pip-audit --no-deps --disable-pip --progress-spinner off -r $(CONSTRAINTS)

test: $(STAMP)  ## Run the fast tests, offline (PYTEST_ARGS="-k masking" chooses)
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_PROCESSES) $(PYTEST_ARGS)

test-slow: $(STAMP)  ## Run the slow tests too
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_PROCESSES) -m "slow or not slow" $(PYTEST_ARGS)

demo: $(STAMP)  ## RetroMAE against plain MLM on SciFact, in minutes on a CPU
	$(BIN)/python examples/demo.py

demo-gur: $(STAMP)  ## GUR from nothing but text: search beside BM25, topics, filling in; in minutes on a CPU
	$(BIN)/python examples/demo_gur.py

clean:  ## Remove build output and caches; the environment stays
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path "./.venv*" -prune -exec rm -rf {} +
