# Two commands on a fresh machine: `make demo` and `make test`. Both do all set-up themselves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: docs docs-generated site demo test test-package test-page test-slow attacks fresh check check-page setup clean help

help:
	@echo "make demo       train a ViT and a CNN on MNIST and write the comparison (1 to 2 minutes on two cores)"
	@echo "make setup      only install, into .venv (another Python: make setup PYTHON=python3.11)"
	@echo "make test       set up everything, then run the tests"
	@echo "make test-slow  the tests that take minutes each"
	@echo "make fresh      make demo and make test on a bare Debian in a folder (needs root; one of them: ONLY=demo)"
	@echo "make attacks    hostile inputs, damage and kills; rewrites the table of docs/reliability.md (at most 15 minutes)"
	@echo "make docs       build the documentation site into build/docs, without network"
	@echo "make site       the same with the static page, for a web host, into build/site"
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

$(VENV)/.docs: $(VENV)/.base requirements-docs.txt
	@echo "installing what builds the documents …"
	@$(PIP) -r requirements-docs.txt
	@touch $@

setup: $(VENV)/.base
	@echo "ready: $(BIN)/vitreous --help"

# On MNIST; without network and cache on scikit-learn's digits, with a note.
demo: $(VENV)/.base
	@$(BIN)/python -m vitreous demo

# The page's tests mostly wait for the browser, so they run beside the others; in a process of their own, because
# playwright keeps an event loop running and other tests could not start theirs.
test: $(VENV)/.dev
	@$(MAKE) --no-print-directory -j2 test-package test-page

test-package: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "not slow" --ignore tests/page

test-page: $(VENV)/.dev
	@log=$$(mktemp); OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow" tests/page >$$log 2>&1; code=$$?; \
	  echo; cat $$log; rm -f $$log; exit $$code

test-slow: $(VENV)/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow

# no fonts, browser, npm or git identity, another locale, a read-only HOME, one core: what a full machine hides
fresh:
	@ONLY="$(ONLY)" LOCALE="$(LOCALE)" .ci/fresh

attacks: $(VENV)/.dev
	@$(BIN)/python -m attacks

# a link to a page or heading that does not exist is a warning, and warnings are errors
SPHINX := $(BIN)/python -m sphinx -q -W --keep-going -b html
docs: docs-generated
	@$(SPHINX) docs build/docs
	@echo "build/docs/index.html"

# the same with the static page in build/site/page/, as a web host takes it; the browser's onnxruntime is downloaded once
site: docs-generated
	@rm -rf build/static
	@$(BIN)/python -m vitreous export --to page -o build/static/page
	@$(SPHINX) -t page docs build/site
	@echo "build/site: copy it to any web host, or: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

docs-generated: $(VENV)/.docs
	@$(BIN)/python docs/generate_reference.py
	@$(BIN)/python docs/draw_vit_page.py
	@$(BIN)/python docs/notebook_pages.py

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
