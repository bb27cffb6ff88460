# make demo: a wave on an atrium never seen, predicted and solved.   make test: all checks and the fast tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check slow gpu docs rivals clean

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

# The pages of docs/ as a site, site/index.html; what a test refuses is refused here too.
docs: $(VENV)/ready-dev
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env docs site

# Other solvers, each in an environment of its own: finitewave needs numpy<2, and torch comes first so that no GPU build is pulled in.
RIVALS := .rivals

$(RIVALS)/torchcor/ready: constraints.txt
	$(PYTHON) -m venv $(RIVALS)/torchcor
	$(RIVALS)/torchcor/bin/python -m pip install --quiet -c constraints.txt torch
	$(RIVALS)/torchcor/bin/python -m pip install --quiet -c constraints.txt torchcor==1.0.6
	touch $@

$(RIVALS)/finitewave/ready:
	$(PYTHON) -m venv $(RIVALS)/finitewave
	$(RIVALS)/finitewave/bin/python -m pip install --quiet finitewave==0.9.3
	touch $@

rivals: $(RIVALS)/torchcor/ready $(RIVALS)/finitewave/ready

clean:
	rm -rf $(VENV) demo site
