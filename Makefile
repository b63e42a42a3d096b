# Two commands matter: `make demo` and `make test`. Both set everything up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
TORCH := torch==2.13.0

# Real data beside the tree is used where it exists; nothing needs it.
ifneq ($(wildcard ../shared/data),)
export SOFTBEAM_DATA ?= $(abspath ../shared/data)
endif

# Tests wait for other processes: more workers than cores keep both cores busy.
WORKERS ?= 3

# Tests start many interpreters: compiled modules are kept, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test soak fuzz install check quick format bench docs notebooks wheel clean

demo: install
	$(BIN)/softbeam demo

test: install
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

quick: install
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not slow"

# Kills, bad input, several processes, ten minutes of memory: under twenty minutes in all.
soak: install
	$(BIN)/pytest -s tests/system/soak.py tests/cli/bad_input tests/runtime/test_ranks.py tests/experiments/test_many_texts.py

# Every reader of files under coverage guidance, for FUZZ seconds each: make fuzz FUZZ=600.
FUZZ ?= 60
fuzz: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	$(BIN)/python tests/fuzz/run.py $(FUZZ)

install: $(STAMP)

# Torch comes first and alone: asked for through a range, the newest build with CUDA would come.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,bench,eval,dev,docs]'
	test -n "$(SOFTBEAM_DATA)" || $(BIN)/softbeam data fetch cmudict # the demo's, so that it needs no network
	touch $(STAMP)

check: install
	$(BIN)/ruff format --check src tests examples docs notebooks
	$(BIN)/ruff check src tests examples docs notebooks
	$(BIN)/mypy
	$(BIN)/pytest tests/project/test_packages.py

format: install
	$(BIN)/ruff format src tests examples docs notebooks
	$(BIN)/ruff check --fix src tests examples docs notebooks

# The site, below docs/_build/html; the same warnings and links fail CI.
docs: install
	rm -rf docs/_build
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html

# Executes the notebooks, and keeps what they print.
notebooks: install
	$(BIN)/python docs/run_notebooks.py

# What would be published, below dist; it is tried in an environment of its own.
wheel: install
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	.ci/try_wheel $(BIN)/python $(TORCH)

bench: install
	$(BIN)/softbeam bench train --json

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis docs/_build dist
