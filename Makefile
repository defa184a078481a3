# `make` alone prints this menu.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Also written if the native part cannot be built here; again once cargo is there.
READY := $(VENV)/.ready$(if $(shell command -v cargo),-native)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# One more test at a time than there are cores, because many wait for processes and sockets.
WORKERS = $(shell $(BIN)/python -c 'import os; print(1 + max(2, os.cpu_count() or 2))')

# Tests start hundreds of processes. Without compiled files each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
# Written by npm, once the packages of the lock file are there.
WEB := web/node_modules/.package-lock.json
JS := js/node_modules/.package-lock.json

.PHONY: help setup run test test-python test-js test-browser web web-check check format bench compare soak shape lock audit-native sbom notices clean

help: ## print this menu
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv from the pinned versions

$(INSTALLED): pyproject.toml requirements/build.txt requirements/dev.txt src/signalhub/pipeline/run/setup.py src/signalhub/pipeline/run/jars.sha256
	@test -n "$(PYTHON)" && "$(PYTHON)" -c "import sys; sys.exit(sys.version_info < (3, 11))" || { echo "Python 3.11 or newer is needed: install it, or run make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up $(VENV) (about three minutes, once)…"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) --require-hashes -r requirements/build.txt
	@$(INSTALL) --require-hashes --no-build-isolation --use-pep517 -r requirements/dev.txt
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q src
	@$(BIN)/python -m signalhub.pipeline.run.setup
	@touch $(INSTALLED)

$(READY): $(INSTALLED) native/crates.txt native/Cargo.toml $(wildcard native/src/*.rs) requirements/native.txt
	@$(BIN)/python -m tools.native
	@touch $(READY)

run: $(READY) ## set up on first use, then start the hub on 127.0.0.1:8787 and its pipeline
	@exec $(BIN)/signalhub serve --pipeline

test: $(READY) ## set up on first use, then run every test with few repetitions
	@$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

# What the native part takes part in, without it: the protocol, the log, rooms, dispatch, and attacks.
PLAIN = tests/spec tests/faults tests/property tests/unit/core tests/unit/log tests/unit/server tests/unit/test_native.py \
	tests/compliance/test_framing.py tests/compliance/test_text.py tests/fuzz/test_frames.py \
	tests/integration/test_debts.py tests/integration/test_fairness.py tests/integration/test_floods.py \
	tests/integration/test_write_path.py

test-python: $(READY) ## the tests of what the native part does, once more in Python alone
	@SIGNALHUB_NATIVE=off $(BIN)/python -m pytest -n $(WORKERS) $(PLAIN) $(ARGS)

$(JS): js/package.json js/package-lock.json
	@node -e 'process.exit(+process.versions.node.split(".")[0] < 20 ? 1 : 0)' 2>/dev/null || { echo "Node 20 or newer is needed to build and test the client for JavaScript"; exit 1; }
	@cd js && npm ci --silent --ignore-scripts
	@touch $(JS)

test-js: $(READY) $(JS) ## build and test the client for JavaScript; needs Node 20
	@cd js && npm run --silent build && npm run --silent check && npm test --silent

$(WEB): web/package.json web/package-lock.json
	@node -e 'process.exit(+process.versions.node.split(".")[0] < 20 ? 1 : 0)' 2>/dev/null || { echo "Node 20 or newer is needed to build and test the dashboard; using it needs none"; exit 1; }
	@cd web && npm ci --silent
	@touch $(WEB)

web: $(WEB) ## build the dashboard into the package; needs Node 20
	@$(PYTHON) -m tools.web_types
	@cd web && npm run --silent types && npm run --silent build

web-check: $(WEB) ## types of the dashboard, and whether the built files are those of its sources
	@cd web && npm run --silent types && npm run --silent build -- --check

test-browser: $(READY) $(WEB) $(JS) ## the dashboard and the client for JavaScript in Chromium; needs Chromium and Node 20
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { echo "Chromium is missing: install it (on Debian: apt-get install chromium)"; exit 1; }
	@$(INSTALL) --require-hashes --no-build-isolation -r requirements/browser.txt
	@$(MAKE) --no-print-directory web-check test-js
	@$(BIN)/python -m pytest -n 2 tests/browser $(ARGS)

check: $(READY) ## format, lint and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: $(READY) ## rewrite the code in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(READY) ## ratios against peers, medians of interleaved runs
	@$(INSTALL) --require-hashes --no-build-isolation -r requirements/bench.txt
	@$(BIN)/python -m bench.commands $(COMMANDS_ARGS)
	@$(BIN)/python -m bench $(ARGS)
	@$(BIN)/python -m bench.lake $(LAKE_ARGS)
	@$(BIN)/python -m bench.actors $(ACTORS_ARGS)

compare: $(READY) ## CPU per message now and in another checkout (BEFORE=folder), or without charging
	@$(BIN)/python -m bench.compare $(BEFORE) $(ARGS)

# The suites with repetitions; the others would only do the same again.
SOAKED = tests/chaos tests/compliance tests/faults tests/fuzz tests/property tests/simulation tests/spec \
	tests/integration/test_fairness.py tests/integration/test_crowds.py tests/integration/test_debts.py \
	tests/pipeline/test_kill.py tests/unit/actors/test_crash_matrix.py

soak: $(READY) ## the same tests for hours: many seeds, rounds and faults, a thousand kills of the hub, fifty of the pipeline
	@SOAK=1 SOAK_KILLS=$(CYCLES) SOAK_PIPELINE_KILLS=$(KILLS) $(BIN)/python -m pytest -n $(WORKERS) $(SOAKED) $(ARGS)

shape: $(READY) ## sizes, names, ownership and tests in figures, next to the targets
	@$(BIN)/python tools/shape.py $(ARGS)

lock: ## write the hashes of all pinned packages into requirements/; needs uv
	@$(BIN)/python tools/lock.py

audit-native: $(READY) ## licenses, sources and known vulnerabilities of the crates; needs cargo-deny, cargo-audit, the network
	@$(BIN)/python -m tools.native --audit

sbom: $(READY) ## write dist/sbom.json (CycloneDX): every package, crate and JAR with its version and hash
	@mkdir -p dist && $(BIN)/python -m tools.sbom > dist/sbom.json && echo dist/sbom.json

notices: $(READY) ## write THIRD-PARTY-NOTICES.md: the license of every package, crate and JAR
	@$(BIN)/python -m tools.notices

clean: ## remove .venv and caches
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
