# Every target sets up .venv by itself; a machine with Python 3.11 or newer and make needs nothing else.
# Another interpreter: make test PYTHON=python3.12. Flags for pytest: make test PYTEST="-n 2 -m 'not slow'".

PYTHON ?= python3
PYTEST ?= -n 2
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: help demo test lint bench clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' Makefile

demo: $(INSTALLED)  ## simulate scans, reconstruct them and write a report and a figure to demo/
	$(BIN)/bdgd demo -o demo

test: lint  ## what every change must pass: linter, types, tests
	$(BIN)/python -m pytest $(PYTEST)

lint: $(INSTALLED)  ## linter and types only
	$(BIN)/ruff check
	$(BIN)/mypy src

bench: $(INSTALLED)  ## measure speed and quality on this machine
	$(BIN)/bdgd bench

clean:  ## remove the environment, caches and what the demo wrote
	rm -rf .venv demo build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@echo "setting up .venv: a minute or two, longer where PyTorch comes with CUDA packages"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	@touch $@
