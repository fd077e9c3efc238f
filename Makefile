# Everything runs in .venv, which the first target that needs it makes. `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PORT ?= 3000
COMPILE := uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-strip-extras --no-header \
	--no-annotate

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Where it is set, each of the hundreds of processes that the tests start would compile all of Dagster anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo ui test test-fast test-fresh test-containers check lock clean inventory chaos bench-settlement bench-shards bench-backfill bench-chain bench-lifecycle bench-outbox

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## put everything, pinned and checked by hash, into .venv

# Python compiles what it imports; pip would compile everything first, which takes a quarter of its time.
$(INSTALLED): requirements-dev.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=…")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --require-hashes --requirement requirements-dev.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

demo: $(INSTALLED) ## load a demo data set, settle, close and pay most of it, say what is left to do
	$(BIN)/python -m ticketflow_orch demo

ui: $(INSTALLED) ## open the Dagster UI with daemon and schedules on 127.0.0.1:3000 (PORT=…)
	$(BIN)/python -m ticketflow_orch ui --port $(PORT)

test: $(INSTALLED) ## run the whole test suite
	$(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

test-fast: $(INSTALLED) ## run the tests that need no server, in a minute
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m fast $(ARGS)

test-fresh: $(INSTALLED) ## the two commands on fresh machines: every Python found, and a bare Debian in podman (RUNTIME=… ARGS=…)
	RUNTIME="$(RUNTIME)" ARGS="$(ARGS)" $(BIN)/python -m tests.fresh

test-containers: $(INSTALLED) ## build the images, run the composition and kill each container once (RUNTIME=… ARGS=…)
	CONTAINERS=1 RUNTIME="$(RUNTIME)" $(BIN)/python -m pytest -p no:randomly tests/containers $(ARGS)

check: $(INSTALLED) ## lint, formatting, types, definitions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.support.sql_lint
	VIRTUAL_ENV="$$PWD/$(VENV)" $(BIN)/dg check defs

lock: ## pin what runs, what is developed with and what is measured, for every supported Python (needs uv)
	$(COMPILE) --extra kubernetes --group dev pyproject.toml --output-file requirements-dev.lock
	$(COMPILE) --constraint requirements-dev.lock pyproject.toml --output-file requirements.lock
	$(COMPILE) --constraint requirements-dev.lock --extra kubernetes pyproject.toml --output-file deploy/kubernetes/requirements.lock
	$(COMPILE) --constraint requirements-dev.lock --group benchmarks --output-file benchmarks/requirements.lock

clean: ## remove .venv, caches and builds; the data in .ticketflow stays
	rm -rf $(VENV) dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

inventory: $(INSTALLED) ## write docs/schedules.md, docs/audit.md, the schema on one page and its catalogue anew, from the code
	$(BIN)/python -m docs.inventory
	$(BIN)/python -m docs.invariants
	$(BIN)/python -m tests.support.schema

bench-settlement: $(INSTALLED) ## settle 2,000,000 organizations against the bare SQL (20 GB, half an hour; ARGS=…)
	$(BIN)/python -m benchmarks.settlement $(ARGS)

bench-shards: $(INSTALLED) ## settle 2,000,000 organizations by one, two and four runs, through the real daemon (ARGS=…)
	$(BIN)/python -m benchmarks.shards $(ARGS)

chaos: $(INSTALLED) ## settle, close, pay and deliver under many more kills, outages, random movements and histories than the tests do (ARGS=…)
	CHAOS_ROUNDS=20 CHAOS_KILLS=50 CHAOS_CRASHES=5 CHAOS_EXAMPLES=300 LIVENESS_HISTORIES=300 LIVENESS_STEPS=40 CLOCK_STEPS=8 CHAOS_MOVEMENTS=10000 CHAOS_EVENTS=10000 LIMITED_EVENTS=100000 \
		CHAOS_SECONDS=60 DAEMON_MINUTES=5 OUTAGES=all $(BIN)/python -m pytest --timeout=3600 tests/chaos \
		tests/settlement/test_late_movements.py tests/settlement/test_amounts.py tests/closing/test_properties.py \
		tests/test_clocks.py tests/payouts/test_history_is_never_paid.py tests/end_to_end/test_daemons.py $(ARGS)

bench-backfill: $(INSTALLED) ## what a month of a backfill costs beyond its settlement, through the real daemon
	$(BIN)/python -m benchmarks.backfill

bench-chain: $(INSTALLED) ## 24 months of 2,000 organizations settled, closed, paid and stated in one backfill (ARGS=…)
	$(BIN)/python -m benchmarks.chain $(ARGS)

bench-lifecycle: $(INSTALLED) ## close, expire and remind by the million against the bare SQL (10 GB, half an hour; ARGS=…)
	$(BIN)/python -m benchmarks.lifecycle $(ARGS)

bench-outbox: $(INSTALLED) ## deliver 100,000 events against two job queues of Python, which are installed for it (ARGS=…)
	$(BIN)/python -m pip install --quiet --require-hashes --requirement benchmarks/requirements.lock
	$(BIN)/python -m benchmarks.outbox $(ARGS)
