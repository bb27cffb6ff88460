# make demo: learn heat and predict it on fibre fields never seen.   make test: all checks and the fast tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check slow gpu clean

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[pictures]'
	touch $@

$(VENV)/ready-dev: $(VENV)/ready
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/ready
	$(BIN)/gfunk demo --out demo

check: $(VENV)/ready-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

test: check
	$(BIN)/python -m pytest -n 2

slow: $(VENV)/ready-dev
	$(BIN)/python -m pytest -m slow

gpu: $(VENV)/ready-dev
	$(BIN)/python -m pytest -m gpu

clean:
	rm -rf $(VENV) demo
