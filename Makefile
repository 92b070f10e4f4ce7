# One word each; every target sets up .venv by itself when it is missing, and does nothing twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install demo test check lint types mutants clean
help:            ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Leeward needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV) (about 2 GB; a few minutes the first time) ..."
	@# torch first and by its pinned version: a torch of that version that is already there is kept.
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

install: $(STAMP)  ## make .venv with everything the demo and the tests need

demo: $(STAMP)     ## train, backtest out of sample, write report.html
	@$(BIN)/python -m leeward.maths

test: $(STAMP)     ## run the tests
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: $(STAMP)     ## ruff: lint and format
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(STAMP)    ## mypy, strict
	@$(BIN)/mypy

check: lint types test  ## everything that must be green before a commit

mutants: $(STAMP)  ## put known faults back, one by one, and see the tests fail
	@OMP_NUM_THREADS=1 $(BIN)/python -m tools.mutants

clean:             ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
