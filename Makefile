# `make` alone prints this menu.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup run test check format bench chaos shape clean

help: ## print this menu
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv from the pinned versions

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" && "$(PYTHON)" -c "import sys; sys.exit(sys.version_info < (3, 11))" || { echo "Python 3.11 or newer is needed: install it, or say make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up $(VENV) (about two minutes, once)…"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[pipeline,dev]'
	@$(BIN)/python -m signalhub.pipeline.run.spark
	@touch $(READY)

run: $(READY) ## set up on first use, then start the hub on 127.0.0.1:8787 and its pipeline
	@exec $(BIN)/signalhub serve --pipeline

test: $(READY) ## set up on first use, then run every test
	@$(BIN)/python -m pytest -n 2 $(ARGS)

check: $(READY) ## format, lint and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: $(READY) ## rewrite the code in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(READY) ## ratios against peers, medians of interleaved runs
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@$(BIN)/python -m bench $(ARGS)
	@$(BIN)/python -m bench.lake $(LAKE_ARGS)
	@$(BIN)/python -m bench.actors $(ACTORS_ARGS)

chaos: $(READY) ## a thousand kills of the hub, fifty of the pipeline, every slow fault test, 20 000 API requests
	@SIGNALHUB_CHAOS_CYCLES=$${CYCLES:-1000} SIGNALHUB_OPENAPI_REQUESTS=20000 SIGNALHUB_PIPELINE_KILLS=$${KILLS:-50} $(BIN)/python -m pytest tests/chaos tests/faults tests/compliance/test_openapi.py tests/pipeline/test_kill.py -n 2 $(ARGS)

shape: $(READY) ## sizes, names, ownership and tests in figures, beside what is wanted
	@$(BIN)/python tools/shape.py $(ARGS)

clean: ## remove .venv and caches
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
