# Every target works from a fresh clone with Python 3.11 or later and make: the environment is made on first use and
# made again when pyproject.toml changes. Set PYTHON to choose another interpreter, ARGS to pass words to the command.

PYTHON ?= python3
VENV ?= .venv
LOWEST ?= .venv-lowest
PEERS ?= .venv-peers
RLLIB ?= .venv-rllib
ENGINE := .venv-engines
ARGS ?=
# How many processes run the tests; none waits for another, so two cores are used well by two.
JOBS ?= 2
BIN := $(VENV)/bin
PARALLEL := --numprocesses $(JOBS) --dist worksteal
# What tests write is gone after them. Where the memory has room for it (KiB), none of the many small files that they
# have synchronised waits for a disk; a TMPDIR of one's own is kept.
MEMORY := /dev/shm
ROOM := 8000000
IN_MEMORY := $(if $(TMPDIR),,$(shell [ "$$(df --output=avail $(MEMORY) 2>/dev/null | tail -n 1)" -gt $(ROOM) ] 2>/dev/null && \
  [ -w $(MEMORY) ] && echo TMPDIR=$(MEMORY)))
PYTEST := $(IN_MEMORY) $(BIN)/python -m pytest
# A test of the longer suites may take an hour; in the others pyproject.toml gives it ten minutes.
LONGER := -o faulthandler_timeout=3600

# Nothing is asked of the index beyond the packages themselves, and nothing waits for an answer.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# Some hundred processes import the library and pytest rewrites every test: both are compiled once.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-cases test-slow test-crashes test-terminal test-faults test-hostile test-lowest test-newer test-peers test-rllib test-rllib-training test-engines test-training test-notebooks test-explorer docs lint format types wheel-check bench check clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# An environment that is active and has what the demo needs is used as it is: nothing is installed twice.
ACTIVE := $(if $(VIRTUAL_ENV),$(shell $(VIRTUAL_ENV)/bin/python -c 'import importlib.util as i; \
  print("$(VIRTUAL_ENV)/bin/episodelake" if all(map(i.find_spec, ("episodelake", "nicegui", "pygame"))) else "")' 2>/dev/null))

demo: $(if $(ACTIVE),,$(VENV)/.installed-demo) ## record, query, rebuild and replay real episodes in ./episodelake-demo
	rm -rf episodelake-demo
	$(or $(ACTIVE),$(BIN)/episodelake) demo $(ARGS)

test: $(VENV)/.installed-test ## run the tests, doctests and documentation examples
	$(PYTEST) $(PARALLEL) $(ARGS)

test-cases: $(VENV)/.installed-test ## the cases and generated examples that `make test` leaves out
	EPISODELAKE_TEST_PROFILE=full $(PYTEST) $(PARALLEL) $(LONGER) -m "(further or hypothesis) and not slow" $(ARGS)

test-slow: $(VENV)/.installed-test ## run everything, with many more generated examples
	EPISODELAKE_TEST_PROFILE=long $(PYTEST) $(PARALLEL) $(LONGER) -m "not peers" $(ARGS)

test-crashes: $(VENV)/.installed-test ## crashes and failures at some points of every kind, also of reads, and sixteen writers
	$(PYTEST) $(PARALLEL) $(LONGER) -m slow tests/store/test_faults.py tests/writers/test_vector_crash.py tests/writers/test_interrupts.py \
	  tests/store/test_maintenance_interrupts.py tests/store/test_visible_steps.py \
	  tests/store/test_failing_reads.py \
	  tests/writers/test_many_writers.py::test_sixteen_writers_some_of_them_killed $(ARGS)

test-terminal: $(VENV)/.installed-test ## the command line on terminals, interrupted, and on an object store
	$(PYTEST) $(PARALLEL) $(LONGER) -m slow tests/terminal/test_terminal_*.py $(ARGS)

test-faults: $(VENV)/.installed-test ## every crash and failure at every point, and combinations
	EPISODELAKE_FAULT_TRIALS=$${EPISODELAKE_FAULT_TRIALS:-20000} $(PYTEST) -o faulthandler_timeout=0 -m slow tests/store/test_faults_long.py $(ARGS)

test-hostile: $(VENV)/.installed-test ## read some hundred hostile stores, and as many damaged ones
	EPISODELAKE_MUTATIONS=$${EPISODELAKE_MUTATIONS:-100} $(PYTEST) $(PARALLEL) $(LONGER) -m slow tests/store/test_safety.py tests/store/test_fuzzing.py $(ARGS)

# The core: recording, reading, SQL, loaders, maintenance, recovery.
CORE := project/test_compatibility.py writers/test_recorder_contract.py writers/test_recorder.py \
  writers/test_episode_writer.py readers/test_readers.py store/test_committed_store.py writers/test_loose_columns.py \
  readers/test_namespaces.py readers/test_sql.py readers/test_query_parameters.py loading/test_loader_order.py \
  loading/test_loader_units.py loading/test_loader_stream.py store/test_compaction.py store/test_deletion_reach.py \
  store/test_annotations.py store/test_tags.py

test-lowest: $(LOWEST)/.installed-lowest ## run the core suite on the oldest supported releases of the dependencies
	$(IN_MEMORY) $(LOWEST)/bin/python -m pytest $(PARALLEL) $(CORE:%=tests/%) $(ARGS)

test-newer: ## run the core suite on each newer Python of this machine, and name those that it lacks
	$(IN_MEMORY) tests/check_newer.sh $(PARALLEL) $(CORE:%=tests/%) $(ARGS)

test-peers: $(PEERS)/.installed-peers ## run the examples and comparisons that need other libraries
	$(IN_MEMORY) $(PEERS)/bin/python -m pytest $(PARALLEL) -m peers tests/integrations/test_peers.py tests/exchange/test_conversion_peers.py tests/project/test_checkers.py \
	  tests/exchange/test_exchange_*.py tests/exchange/test_formats.py $(ARGS)

# RLlib needs a Gymnasium of its own. One process: its tests share one small cluster.
test-rllib: $(RLLIB)/.installed-rllib ## read and write stores with Ray Data and RLlib, in an environment of their own
	$(IN_MEMORY) $(RLLIB)/bin/python -m pytest $(LONGER) -m peers tests/integrations/test_rllib_offline.py tests/integrations/test_rllib_recording.py \
	  tests/integrations/test_rllib_exchange.py tests/integrations/test_ray_reading.py tests/integrations/test_ray_writing.py \
	  tests/integrations/test_ray_mapping.py tests/integrations/test_ray_collecting.py $(ARGS)

test-rllib-training: $(RLLIB)/.installed-rllib ## train RLlib's offline algorithms on a Ray cluster, from stores and from its own format
	$(IN_MEMORY) $(RLLIB)/bin/python -m pytest $(LONGER) -m peers tests/integrations/test_rllib_training.py $(ARGS)

ENGINES := duckdb polars daft delta-sharing pyspark

test-engines: $(VENV)/.installed-test $(RLLIB)/.installed-rllib $(ENGINES:%=$(ENGINE)/%/.installed) ## run the queries of docs/engines.md in environments of these engines; PySpark needs Java 17
	$(IN_MEMORY) $(BIN)/python tests/engines/compare.py $(foreach name,$(ENGINES),$(name)=$(ENGINE)/$(name)/bin/python) ray=$(RLLIB)/bin/python

test-training: $(VENV)/.installed-test ## train the examples' learners over several seeds, and run their notebook
	$(PYTEST) $(PARALLEL) $(LONGER) -m slow tests/project/test_training.py tests/project/test_training_notebook.py $(ARGS)

test-notebooks: $(VENV)/.installed-test ## run the notebooks and compare what they show with the committed outputs
	$(PYTEST) $(PARALLEL) $(LONGER) -m slow tests/project/test_notebooks.py tests/project/test_story_notebooks.py $(ARGS)

docs: $(VENV)/.installed-test ## build the site of the documentation into build/docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs build/docs $(ARGS)

test-explorer: $(VENV)/.installed-test ## open the explorer in a headless Chromium; fails where there is none
	@test -n "$$EPISODELAKE_CHROMIUM" || command -v chromium chromium-browser google-chrome >/dev/null || \
	  { echo 'The explorer is tested in Chromium. Install it (Debian: apt-get install chromium), or set EPISODELAKE_CHROMIUM.' >&2; exit 1; }
	$(PYTEST) $(LONGER) -m slow tests/look/test_explorer_page.py tests/look/test_explorer_rollouts.py \
	  tests/look/test_explorer_accessibility.py $(ARGS)

lint: $(VENV)/.installed-test ## check style and format with ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-test ## write the format and the safe fixes of ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.installed-test ## check the library's types with pyright, for the oldest and the newest Python
	$(BIN)/pyright --pythonpath $(BIN)/python --pythonversion 3.11
	$(BIN)/pyright --pythonpath $(BIN)/python --pythonversion 3.14

wheel-check: $(VENV)/.installed-test ## build the wheel, install it in a clean environment, use it from another folder
	PYTHON="$(BIN)/python" tests/check_wheel.sh

bench: $(VENV)/.installed-test ## measure against Minari and bare pyarrow, and print the table
	$(BIN)/python benchmarks/run.py $(ARGS)

check: test test-cases test-crashes test-terminal test-hostile test-lowest test-newer test-peers test-training test-notebooks test-explorer lint types wheel-check ## all that the continuous integration checks

clean: ## remove the environments, builds and caches
	rm -rf $(VENV) .venv-3.* $(LOWEST) $(PEERS) $(RLLIB) $(ENGINE) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis benchmarks/.venv
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'Episodelake needs Python 3.11 or later; name one with: make PYTHON=python3.11' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(LOWEST)/.installed-lowest: pyproject.toml tests/lowest.txt
	$(MAKE) --no-print-directory VENV=$(LOWEST) $(LOWEST)/bin/python
	$(LOWEST)/bin/python -m pip install --quiet --constraint tests/lowest.txt --editable '.[lowest]'
	@touch $@

$(PEERS)/.installed-peers: pyproject.toml tests/peers.txt tests/peers-alone.txt
	$(MAKE) --no-print-directory VENV=$(PEERS) $(PEERS)/bin/python
	$(PEERS)/bin/python -m pip install --quiet --requirement tests/peers.txt --editable .
	$(PEERS)/bin/python -m pip install --quiet --no-deps --requirement tests/peers-alone.txt
	@touch $@

$(RLLIB)/.installed-rllib: pyproject.toml tests/rllib.txt
	$(MAKE) --no-print-directory VENV=$(RLLIB) $(RLLIB)/bin/python
	$(RLLIB)/bin/python -m pip install --quiet --requirement tests/rllib.txt --editable .
	@touch $@

$(ENGINE)/%/.installed: tests/engines/%.txt
	$(PYTHON) -m venv $(ENGINE)/$*
	$(ENGINE)/$*/bin/python -m pip install --quiet --requirement $<
	@touch $@

# Python compiles what it imports; pip would compile every file of all packages first.
$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[$*]'
	@touch $@
