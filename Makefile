# One word each; every target sets up .venv by itself when it is missing, and does nothing twice.
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RAY := $(VENV)/.installed-ray

.DEFAULT_GOAL := help
.PHONY: help install demo test ray lint types check mutants faults speed fuzz kills accidents soak wheel licences clean

help: ## show this list
	@echo "Leeward: trading agents that know their own tail risk."
	@echo
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1|\2/' | awk -F'|' '{printf "%-16s %s\n", $$1, $$2}'

install: $(STAMP) ## make .venv with everything the demo and the tests need

demo: $(STAMP) ## train on real market data, backtest out of sample, write report.html (3 minutes)
	@rm -rf runs/demo runs/demo-control
	@echo "1/2  Control: a synthetic market with a planted signal whose best policy is known."
	@$(BIN)/leeward train configs/control.yaml --run-dir runs/demo-control --quiet
	@$(BIN)/leeward backtest runs/demo-control --split test
	@echo "2/2  NASDAQ Composite, daily, 1999-2018."
	@$(BIN)/leeward train configs/demo.yaml --run-dir runs/demo
	@$(BIN)/leeward backtest runs/demo --split train --quiet
	@$(BIN)/leeward backtest runs/demo --split test
	@echo
	@$(BIN)/leeward report runs/demo --control runs/demo-control --out report.html

test: $(STAMP) ## run the tests (WORKERS=2 processes)
	@# By file, so that what a file sets up is set up once; those that take longest come first (tests/conftest.py).
	@OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

ray: $(RAY) ## what needs Ray or Optuna: install them, and run their tests where the network is the loopback alone
	@tools/alone.sh $(BIN)/python -m pytest -m ray

lint: $(STAMP) ## ruff: lint and format
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(STAMP) ## mypy, strict: the package and the tools
	@$(BIN)/mypy && $(BIN)/mypy -p tools

check: lint types test ## everything that must be green before a commit

mutants: $(STAMP) ## put known faults back, one by one, and see the tests fail
	@$(BIN)/python -m tools.mutants

faults: $(STAMP) ## put faults into real training runs, one by one, and see which alert names each
	@OMP_NUM_THREADS=1 $(BIN)/python -m tools.faults

speed: $(STAMP) ## has training become slow? time over that of its bare network
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/speed/check.py

fuzz: $(STAMP) ## a thousand bad checkpoints, configs and files of bars, and every file of a run damaged (minutes)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tools.fuzz

kills: $(STAMP) ## kill a run 200 times, half of them inside its writes, and resume it (10 minutes)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tools.kills

accidents: $(STAMP) ## take a run its directory and its memory while it trains (2 minutes)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tools.accidents

soak: $(STAMP) ## train for half an hour with kills: memory, file handles and threads stay flat
	@OMP_NUM_THREADS=1 $(BIN)/python -m tools.soak

wheel: $(STAMP) ## build the wheel, install it without extras into a new environment; import, learn, save, load
	@rm -rf build/wheel && mkdir -p build/wheel
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w build/wheel .
	@$(PYTHON) -m venv build/wheel/venv
	@build/wheel/venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	@build/wheel/venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build/wheel/leeward-*.whl
	@# From elsewhere and isolated, so that what is imported is what was installed.
	@cd build/wheel && venv/bin/python -I $(CURDIR)/tools/wheel.py

licences: $(STAMP) ## what is installed, with versions and licences: the bill of materials as CycloneDX JSON
	@$(BIN)/python -m tools.materials > materials.json && echo "materials.json"

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(STAMP): pyproject.toml constraints.txt requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit("Leeward needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV): about 2 GB, more with a CUDA build of torch; a few minutes, once ..."
	@# torch first and by its pinned version: one of that version that is already there, a CPU build too, is kept.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	@# Everything else by its hash: what is in requirements.txt and nothing more, so that nobody can slip in another file.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

$(RAY): $(STAMP) requirements-ray.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-ray.txt
	@touch $(RAY)
