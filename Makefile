# `make` lists the targets. The first call of `make run`, `make test` or `make check` creates .venv.

# Use the first Python that is 3.11 or newer. `make PYTHON=python3.13 …` selects another Python.
PYTHON := python3.11 python3
BIN := .venv/bin
# One process runs all tests of a file, so it starts the environment of the tests only once. Most tests wait for other processes, so run
# three test processes for each core. Boots of firmware need more CPU time, so run two for each core.
WORKERS := $(shell expr 3 \* $$(nproc))
PYTEST = $(BIN)/pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder
READY := .venv/.ready

# Tests start a thousand programs. Reuse compiled files, so that each program starts faster.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test test-boot test-mutations test-packages bench flows check docs release audit reference format clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand --tabs=18

run: $(READY) ## run gitboot with the example fleet, only on this machine
	@scripts/run-example

test: $(READY) ## run all tests, except those that boot real firmware or install packages
	$(PYTEST) $(BOOTS) $(SEARCH)

test-boot: WORKERS := $(shell expr 2 \* $$(nproc))
test-boot: $(READY) ## boot real firmware from published files; installs Debian packages, needs root
	scripts/install-packages tests/boots/packages.txt
	$(PYTEST) --boots $(BOOTS) tests/boots

test-mutations: $(READY) ## add each fault of tests/mutations.yaml to a copy of the code, and check that tests find it
	$(BIN)/python -m tests.mutations

test-packages: WORKERS := 1
test-packages: $(READY) ## build the Debian package and the image, and install them; needs Debian and root
	scripts/install-packages packaging/packages.txt
	$(PYTEST) --packages tests/packages

bench: $(READY) ## measure what gitboot costs, and write docs/explanation/benchmarks.md; installs Debian packages; `make bench BENCH='first-pass --sizes 1000'`
	scripts/install-packages benchmarks/packages.txt
	$(BIN)/python -m benchmarks $(BENCH)

flows: $(READY) ## list what gitboot calls in three flows; `make flows FLOWS='compare benchmarks/flows/2fefe59.json'`
	@$(BIN)/python -m benchmarks.flows $(or $(FLOWS),record)

check: $(READY) ## run all other checks of CI: style, types, architecture, dependencies, schemas, the example
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/deptry . --no-ansi
	$(BIN)/vulture
	$(BIN)/python -m gitboot.review.formats.json --check schemas
	$(BIN)/python scripts/reference.py --check
	$(BIN)/gitboot validate example-repo

docs: $(READY) ## build the documentation as a site, strictly: build/site
	@scripts/install '.[docs]'
	$(BIN)/python scripts/site.py

release: ## build all files of a release in build/release from the commit; needs Debian and root
	scripts/install-packages packaging/packages.txt
	scripts/release

audit: $(READY) ## check the installed packages for known vulnerabilities; needs a network
	$(BIN)/python scripts/audit.py

reference: $(READY) ## write schemas/ and docs/reference/ from the code
	$(BIN)/python -m gitboot.review.formats.json schemas
	$(BIN)/python scripts/reference.py

format: $(READY) ## format the code, and fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove .venv and every cache
	rm -rf .venv .cache .coverage* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Run this again only if pyproject.toml changed or the last run was interrupted.
$(READY): pyproject.toml
	@for python in $(PYTHON); do \
		"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
		python=; \
	done; \
	if [ -z "$$python" ]; then \
		echo 'gitboot needs Python 3.11 or newer. These commands are missing or older: $(PYTHON)' >&2; \
		echo 'On Debian 12 or newer: apt install python3 python3-venv' >&2; \
		exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip' 2>/dev/null; then \
		echo "$$python cannot create virtual environments. On Debian: apt install python3-venv" >&2; \
		exit 1; \
	fi; \
	echo "Setting up .venv with $$("$$python" --version): about 50 packages, about a minute, only this once."; \
	$(BIN)/python -m pip --version >/dev/null 2>&1 || "$$python" -m venv --clear .venv && \
	scripts/install '.[dev]' && \
	touch $@ && \
	echo 'Ready.'
