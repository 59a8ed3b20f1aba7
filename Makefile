# Needs make and Python 3.11 or newer; uv is used where it is installed.
# Everything runs in .venv, which the first target that needs it makes and fills.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# PYTHON=...       the interpreter to build .venv with, where the choice matters
# WORKERS=...      test processes; compilation dominates, so two halve the time
# PYTEST_ARGS=...  passed on to pytest: make test-fast PYTEST_ARGS="-k ksd"
# SCALE=quick, SEED=...  of the fault campaign: make faults SCALE=cpu SEED=3
# X64_TESTS=...    the tests that `make test` runs again in 64-bit; `make test-x64`: all
PYTHON ?=
SCALE ?= hour
SEED ?= 0
WORKERS ?= 2
PYTEST_ARGS ?=
X64_TESTS ?= $(addprefix tests/test_,constraints.py preconditioner.py densities.py \
	dft_gradient.py kl_gradient.py ksd.py minibatch.py mmd.py networks.py scores.py \
	spline.py wasserstein.py)
PYTHONS = $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.14)
# The fast tests run in parts, each with processes of its own: a compiled program takes
# memory and memory maps, of which a process has 65,530, and not all are ever freed.
PARTS ?= "tests/reproduction tests/test_[a-d]*.py" "tests/test_[e-m]*.py" \
	"tests/test_[n-r]*.py" "tests/test_[s-z]*.py"
# A worker that crashes fails the run at once: what it was doing is not tried again.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --max-worker-restart 0 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install demo test test-fast test-x64 test-x64-core test-slow lint \
	format typecheck \
	bench faults docs clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-11s%s\n", $$1, $$2 }' \
		$(firstword $(MAKEFILE_LIST))

install: $(STAMP)  ## make .venv with pushforward and its development tools

demo: $(STAMP)  ## train a sampler, check it, draw a picture
	@$(BIN)/pushforward demo

test: lint typecheck test-fast test-x64-core  ## lint, types, tests: what must pass

test-fast: $(STAMP)  ## the fast tests, in JAX's usual 32-bit
	@set -e; for part in $(PARTS); do \
		echo "pytest $$part"; \
		JAX_ENABLE_X64=0 $(PYTEST) $(PYTEST_ARGS) $$part || test $$? -eq 5; \
	done

test-x64-core: $(STAMP)
	JAX_ENABLE_X64=1 $(PYTEST) -m "not slow and not once" $(PYTEST_ARGS) $(X64_TESTS)

test-x64: $(STAMP)  ## all fast tests again, in 64-bit
	JAX_ENABLE_X64=1 $(PYTEST) -m "not slow and not once" $(PYTEST_ARGS)

test-slow: $(STAMP)  ## the long statistical proofs
	$(PYTEST) -m slow $(PYTEST_ARGS)

lint: $(STAMP)  ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: $(STAMP)  ## pyright on src and reproduction
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python

bench: $(STAMP)  ## run every benchmark and render docs/benchmarks.md
	@set -e; for file in benchmarks/[a-z]*.py; do \
		echo "$$file"; PYTHONPATH=. $(BIN)/python "$$file"; \
	done

faults: $(STAMP)  ## about an hour of faults: kills, damaged files, odd calls
	$(BIN)/python -m tests.faults --scale $(SCALE) --seed $(SEED) --out results/faults.json
	$(BIN)/python -m tests.faults.render

docs: $(VENV)/.docs  ## build the documentation site into site/, strictly
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "The site is in site/index.html."

clean:  ## remove .venv, caches and built packages; runs and results stay
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist site
	find src reproduction tests benchmarks examples -name __pycache__ -type d -prune \
		-exec rm -rf {} + 2>/dev/null || true

$(VENV)/.docs: $(STAMP)
	@set -eu; uv=$$(command -v uv || true); \
	if test -n "$$uv"; then \
		"$$uv" pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[docs]'; \
	else \
		$(BIN)/python -m pip install -qq --disable-pip-version-check \
			-c constraints.txt -e '.[docs]'; \
	fi; \
	touch $@

# An interpreter counts only if it runs: a name on PATH may be an empty shim. Where
# there is none, uv fetches one.
$(STAMP): pyproject.toml constraints.txt
	@set -eu; \
	recent='import sys; sys.exit(sys.version_info < (3, 11))'; \
	uv=$$(command -v uv || true); \
	if $(BIN)/python -c "$$recent" 2>/dev/null \
		&& { test -n "$$uv" || $(BIN)/python -m pip --version >/dev/null 2>&1; }; \
	then \
		echo "Bringing $(VENV) up to date."; \
	else \
		python=; \
		for name in $(PYTHONS); do \
			if "$$name" -c "$$recent" 2>/dev/null; then python=$$name; break; fi; \
		done; \
		if test -z "$$python" && test -n "$$uv" && test -z "$(PYTHON)"; then \
			python=3.12; \
		elif test -z "$$python"; then \
			echo "pushforward needs Python 3.11 or newer and found none under the names" \
				"$(PYTHONS): install one, or say which to use with" \
				"'make PYTHON=/path/to/python'." >&2; \
			exit 2; \
		fi; \
		echo "Installing pushforward and its development tools into $(VENV);" \
			"this takes a minute or two."; \
		if test -n "$$uv"; then \
			rm -rf $(VENV); \
			"$$uv" venv --quiet --python "$$python" $(VENV); \
		elif "$$python" -c 'import venv, ensurepip' 2>/dev/null; then \
			"$$python" -m venv --clear $(VENV); \
		else \
			echo "$$python cannot make virtual environments: install its venv module" \
				"(python3-venv on Debian and Ubuntu), or uv." >&2; \
			exit 2; \
		fi; \
	fi; \
	if test -n "$$uv"; then \
		"$$uv" pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[dev]'; \
	else \
		$(BIN)/python -m pip install -qq --disable-pip-version-check \
			-c constraints.txt -e '.[dev]'; \
	fi; \
	touch $@
