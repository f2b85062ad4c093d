# Two commands on a fresh machine with Python 3.11 or newer, make and git: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
DIGITS := $(BIN)/python examples/digits.py
WORKERS ?= 2

.PHONY: help demo test soak lint types structure bench clean compiler

help:
	@echo "make demo    train on real digits, on auto and on a plugin from a wheel"
	@echo "make test    all tests"
	@echo "make soak    the long ones: every kill, every combination"
	@echo "make lint    ruff, mypy"
	@echo "make bench   cost of a step, of starting and of listing, against the raw loop and peers"
	@echo "make clean   remove what these made"

demo: $(VENV)/.ready
	@echo; echo "== The accelerator that auto chooses, and why"
	$(BIN)/accelkit why
	@echo; echo "== Digits on it"
	$(DIGITS)
	@echo; echo "== A vendor's plugin, built as a wheel of its own and installed"
	rm -rf build/wheels
	$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheels examples/vendor-acme-plugin
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps --no-index --force-reinstall build/wheels/vendor_acme_plugin-*.whl
	$(BIN)/accelkit list --kind accelerator
	@echo; echo "== Digits on the plugin, selected by name"
	$(DIGITS) --accelerator acme_sim

test: $(VENV)/.ready compiler
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not soak"

soak: $(VENV)/.ready compiler
	$(BIN)/python -m pytest -n $(WORKERS) -m soak -s

structure: $(VENV)/.ready
	$(BIN)/python -m pytest -q tests/structure

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready
	$(BIN)/mypy

bench: $(VENV)/.peers
	$(BIN)/python benchmarks/step_overhead.py
	$(BIN)/python benchmarks/start_cost.py
	$(BIN)/python benchmarks/list_cost.py

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "accelkit needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "$(PYTHON) has no venv module. On Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) hatchling editables build ruff mypy types-psutil scikit-learn
	$(PIP) --no-build-isolation --editable '.[conformance,template]'
	@touch $@

$(VENV)/.peers: $(VENV)/.ready
	$(PIP) lightning accelerate
	@touch $@

compiler:
	@command -v cc >/dev/null && command -v c++ >/dev/null || { echo "Some tests compile C and C++, and there is no compiler. On Debian or Ubuntu: apt-get install build-essential. On Fedora: dnf install gcc gcc-c++. On macOS: xcode-select --install"; exit 1; }

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
