# Everything a newcomer types: `make demo`, `make test`. Works from any folder: make -C PATH demo.
ROOT := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
PYTHON ?= python3
VENV := $(ROOT)/.venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint clean install

install: $(STAMP)

$(STAMP): $(ROOT)/pyproject.toml $(ROOT)/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "Murmur needs Python 3.11 to 3.13; name one with: make PYTHON=python3.11 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	cd $(ROOT) && $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[simulation,dev]'
	@$(BIN)/python -c 'import torchvision' 2>/dev/null || \
	  { echo "torch and torchvision do not match: remove $(VENV) and run make again, so that both are installed as the pair in constraints.txt"; exit 1; }
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/murmur engine=ray results_dir=$(ROOT)/runs

test: $(STAMP)
	cd $(ROOT) && $(BIN)/python -m pytest

lint: $(STAMP)
	cd $(ROOT) && $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

clean:
	rm -rf $(VENV)
