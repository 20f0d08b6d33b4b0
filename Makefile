# Two commands on a fresh machine: `make demo` and `make test`. Both do all set-up themselves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow check check-page setup clean help

help:
	@echo "make demo       train a ViT and a CNN on MNIST and write the comparison (about 4 minutes on two cores)"
	@echo "make setup      only install, into .venv (another Python: make setup PYTHON=python3.11)"
	@echo "make test       set up everything, then run the tests"
	@echo "make test-slow  the tests that take minutes each"
	@echo "make check      ruff and mypy; make check-page: the page's JavaScript (needs npm)"
	@echo "make clean      remove the environment and caches (runs/ stays)"

# Stamp files: each is as new as the install it records.
$(VENV)/.base: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "vitreous needs Python 3.11 or newer, which $(PYTHON) is not: add PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing vitreous into $(VENV) …"
	@$(PIP) -e '.[serve]'
	@touch $@

$(VENV)/.dev: $(VENV)/.base requirements-dev.txt
	@echo "installing the test tools and the peers …"
	@$(PIP) -r requirements-dev.txt
	@touch $@

setup: $(VENV)/.base
	@echo "ready: $(BIN)/vitreous --help"

# On MNIST; without network and cache on scikit-learn's digits, with a note.
demo: $(VENV)/.base
	@$(BIN)/python -m vitreous demo

test: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "not slow" --ignore tests/page
# in its own process: playwright keeps an event loop running, so other tests could not start theirs
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow" tests/page

test-slow: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow

check: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# types and lint of the page's JavaScript; needs npm
check-page:
	@cd web && npm ci --silent --no-audit --no-fund && npm run --silent check

clean:
	rm -rf $(VENV) web/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
