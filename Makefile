# make demo    select a tenth of the rollouts that mprm ships, train on it, measure, and compare
# make test    lint, types and tests
# make slow    the tests that take longer
# make lint    ruff and mypy alone
# make fuzz    mutated records of every format through readers and commands, for ten minutes at most
# make bench   time select against plain json on a corpus of the paper's size

PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2

.PHONY: demo test slow lint fuzz bench clean

.venv/installed: pyproject.toml setup.py constraints.txt $(wildcard src/mprm/*/_*.c src/mprm/*/_*.h) lab/pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' --editable lab
	touch $@

.venv/installed-demo: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[train,annotate]' --editable lab
	touch $@

demo: .venv/installed-demo
	@rm -rf demo
	$(BIN)/mprm-lab demo demo

lint: .venv/installed-dev
	$(BIN)/ruff check src lab tests benchmarks setup.py
	$(BIN)/ruff format --check src lab tests benchmarks setup.py
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n $(JOBS) --dist worksteal --doctest-modules src lab tests

slow: .venv/installed-dev
	$(BIN)/pytest -n $(JOBS) --dist worksteal --durations 12 -m slow tests

fuzz: .venv/installed-dev
	$(BIN)/python -m tests.fuzz --records 100000 --seconds 600

bench: .venv/installed
	$(BIN)/python benchmarks/selection.py

clean:
	rm -rf .venv demo build src/*.egg-info
