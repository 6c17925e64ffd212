# Everything a fresh clone needs: `make train` and `make test` set up a virtual environment by themselves, once.
#   make train ARGS="experiment=stdlib seed=1"    the same as: python train.py experiment=stdlib seed=1
#   make test ARGS="tests/layers -k rotary"       arguments of pytest

PYTHON ?=
VENV := .venv
READY := $(VENV)/ready
BENCH := $(VENV)/bench
BIN := $(VENV)/bin
ARGS ?=

# Where packages come from is pip's own business (pip.conf, PIP_* variables); more of its arguments: make setup PIP_ARGS=...
PIP_ARGS ?=

# Two processes of one thread each: beside another busy process two OpenMP threads are many times slower than one.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup train compare test test-all check format hooks bench clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(READY)  ## virtual environment in .venv with everything installed (done by the others when needed)

train: $(READY)  ## train the default model: dates to ISO 8601, one to two minutes on two cores
	@$(BIN)/python train.py $(ARGS)

# Again after an end too early, it goes on where it was; after `rm -r outputs/sweeps/forms_*`, from the beginning.
compare: $(READY)  ## the three forms at one size on two built-in data sets, three seeds each: a report and a table of each
	@$(BIN)/python train.py -m experiment=stdlib_modules_small model=encoder,decoder,encoder_decoder seed=0,1,2 \
		logger=csv hydra.sweeper.name=forms_on_modules hydra.sweeper.metric=accuracy hydra.sweeper.mode=max $(ARGS)
	@$(BIN)/python train.py -m experiment=dates_small model=decoder,encoder_decoder seed=0,1,2 \
		logger=csv hydra.sweeper.name=forms_on_dates $(ARGS)
	@$(BIN)/triform compare outputs/sweeps/forms_on_modules
	@$(BIN)/triform compare outputs/sweeps/forms_on_dates --metric test/exact_match

test: $(READY)  ## fast tests, on the CPU
	$(PYTEST) $(ARGS)

test-all: $(READY)  ## the slow tests too, and those for a GPU where there is one
	$(PYTEST) -m "" $(ARGS)

check: $(READY)  ## formatting, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(READY)  ## format and fix what can be fixed mechanically
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

hooks: $(READY)  ## run the checks before each commit
	$(BIN)/pre-commit install

bench: $(BENCH)  ## the figures of README.md measured here, beside the libraries one would use instead; ten minutes on two cores
	@$(BIN)/python benchmarks/table.py $(ARGS)

clean:  ## remove the virtual environment, caches and builds; runs in outputs/ stay
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@python="$(PYTHON)"; \
	for candidate in $${python:-python3 python3.13 python3.12 python3.11}; do \
		if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found="$$candidate"; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo "error: $${python:-python3} is no Python 3.11 or newer; install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; \
	fi; \
	echo "setup: $(VENV) with $$("$$found" --version); installing takes some minutes, once"; \
	if ! "$$found" -m venv $(VENV) >/dev/null 2>&1; then \
		echo "error: $$found cannot make a virtual environment; install its venv module (Debian, Ubuntu: apt install python3-venv)" >&2; \
		exit 1; \
	fi; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	@touch $@

$(BENCH): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[bench]'
	@touch $@
