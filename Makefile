# Everything on a fresh machine with Python 3.11+ and make: `make demo`, `make test`.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
export FOXHUNT_PRESET ?= demo
STATE := $(if $(FOXHUNT_STATE),$(FOXHUNT_STATE),$(CURDIR)/.foxhunt)
export DAGSTER_HOME ?= $(abspath $(STATE))/dagster

.PHONY: demo test ui lint bench clean
.DEFAULT_GOAL := demo

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

$(DAGSTER_HOME)/dagster.yaml: dagster.yaml
	@mkdir -p $(@D)
	@cp dagster.yaml $@

demo: $(VENV)/.installed $(DAGSTER_HOME)/dagster.yaml ## the whole pipeline, ending in a table of published models
	$(BIN)/foxhunt demo

ui: $(VENV)/.installed $(DAGSTER_HOME)/dagster.yaml ## the Dagster UI with its daemon, on http://127.0.0.1:3000
	$(BIN)/dagster dev -w workspace.yaml -h 127.0.0.1

test: $(VENV)/.installed-dev ## every test
	env -u FOXHUNT_PRESET -u DAGSTER_HOME $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

lint: $(VENV)/.installed-dev ## ruff, mypy, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed-dev ## every benchmark, with its table
	set -e; for file in benchmarks/*.py; do $(BIN)/python $$file; done

clean: ## remove the environment and all state
	rm -rf $(VENV) .foxhunt
