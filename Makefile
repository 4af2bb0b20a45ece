# Everything a newcomer types: `make demo`, `make check`, `make test`. Works from any folder: make -C PATH demo.
ROOT := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
PYTHON ?= python3
VENV := $(ROOT)/.venv
BIN := $(VENV)/bin
KERNELS := $(ROOT)/packages/murmur-kernels
# All that stand beside the core, each found by its entry points.
PACKAGES := $(sort $(wildcard $(ROOT)/packages/murmur-*))
LINES := $(foreach package,$(PACKAGES),echo $(package);)
RUNS := $(VENV)/.runs
STAMP := $(VENV)/.installed

.PHONY: docs release-check demo check quick test test-thorough test-federation test-flower test-ray test-floor test-browser test-long lint clean install bench bench-pfl

install: $(STAMP)

PIP = cd $(ROOT) && $(BIN)/python -m pip install --disable-pip-version-check --progress-bar on --constraint constraints.txt

# What runs need; in everything after it, the other packages, tests and tools are added.
$(RUNS): $(ROOT)/pyproject.toml $(KERNELS)/pyproject.toml $(ROOT)/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "Murmur needs Python 3.11 to 3.13; name one with: make PYTHON=python3.11 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Murmur and its libraries (PyTorch, Flower, Ray) into $(VENV): once, about 2 minutes and 6.4 GB"
	$(PIP) --editable '.[simulation]' --editable $(KERNELS)
	@$(BIN)/python -c 'import torchvision' 2>/dev/null || \
	  { echo "torch and torchvision do not match: remove $(VENV) and run make again, so that both are installed as the pair in constraints.txt"; exit 1; }
	@touch $(RUNS)

$(STAMP): $(RUNS) $(PACKAGES:%=%/pyproject.toml)
	@echo "Installing what tests and checks need into $(VENV): once, 1.4 GB more"
	$(PIP) --editable '.[simulation,sweeps,dev]' $(PACKAGES:%=--editable %)
	@touch $(STAMP)

# Several processes share the cores: more threads than one in each only wait for each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# Files in the order of tests/conftest.py, each whole on one worker.
PARALLEL := --numprocesses auto --dist loadscope --no-loadscope-reorder
HERE := not federation and not long and not browser

demo: $(RUNS)
	@$(BIN)/murmur experiment=digits_votes engine=ray results_dir=$(ROOT)/runs

test: $(STAMP)
	cd $(ROOT) && $(PYTEST) $(PARALLEL) -m "$(HERE) and not thorough"

test-thorough: $(STAMP)
	cd $(ROOT) && $(PYTEST) $(PARALLEL) -m "$(HERE) and thorough"

test-federation: $(STAMP)
	cd $(ROOT) && $(PYTEST) $(PARALLEL) -m "federation and not long"

# Lint and types beside the parts of the tests that take seconds.
QUICK := tests/murmur/privacy/policy tests/murmur/privacy/test_events.py tests/murmur/privacy/test_noise.py \
  tests/murmur/privacy/ledger/test_tampering.py tests/murmur/privacy/accounting/test_gaussian.py \
  tests/fl_app/config/test_compose.py tests/fl_app/config/test_job_key.py \
  tests/murmur/round/test_schedule.py
check: $(STAMP)
	@$(MAKE) --no-print-directory --jobs 2 -C $(ROOT) lint quick

quick: $(STAMP)
	cd $(ROOT) && $(PYTEST) $(QUICK)

# A second Flower: an environment of its own that shares all other packages with ours, and has JAX, of an example app.
FLOWER := 1.42
OTHER := $(VENV)/flower-$(FLOWER)
PURELIB := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

$(OTHER)/.installed: $(STAMP)
	$(BIN)/python -m venv $(OTHER)
	{ $(BIN)/python $(PURELIB); $(LINES) } > "$$($(OTHER)/bin/python $(PURELIB))/shared.pth"
	cd $(ROOT) && $(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  'flwr==$(FLOWER).*' --editable .
	cd $(ROOT) && $(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  --constraint constraints.txt jax jaxlib
	@touch $@

test-flower: $(OTHER)/.installed
	cd $(ROOT) && OMP_NUM_THREADS=1 $(OTHER)/bin/python -m pytest $(PARALLEL) -m 'federation or not federation' \
	  tests/fl_app/engines/test_flower_run.py tests/deploy/test_loopback.py tests/murmur/compat \
	  tests/murmur/flower/test_apps.py tests/murmur/flower/test_example_apps.py \
	  packages/murmur-guard/tests/test_guarded_apps.py

# A second Ray in the same way, for what is private to it (murmur/compat/ray_workers.py).
RAY := 2.54
OTHER_RAY := $(VENV)/ray-$(RAY)

$(OTHER_RAY)/.installed: $(STAMP)
	$(BIN)/python -m venv $(OTHER_RAY)
	{ $(BIN)/python $(PURELIB); $(LINES) } > "$$($(OTHER_RAY)/bin/python $(PURELIB))/shared.pth"
	cd $(ROOT) && $(OTHER_RAY)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  'ray==$(RAY).*' --editable .
	@touch $@

test-ray: $(OTHER_RAY)/.installed
	cd $(ROOT) && OMP_NUM_THREADS=1 $(OTHER_RAY)/bin/python -m pytest $(PARALLEL) -m "$(HERE)" \
	  tests/fl_app/engines/test_ray.py tests/fl_app/sweep/test_on_ray.py tests/murmur/compat/test_needed.py

# The lowest versions that pyproject.toml allows of all but what takes longest to download: an environment of its own
# that shares with ours what is the same there. `uv` comes with Flower.
FLOOR := $(VENV)/floor
KEPT := torch torchvision ray
SORTED := LC_ALL=C sort

$(FLOOR)/.installed: $(STAMP)
	$(BIN)/python -m venv --clear --without-pip $(FLOOR)
	{ $(BIN)/python $(PURELIB); $(LINES) } > "$$($(FLOOR)/bin/python $(PURELIB))/shared.pth"
	$(BIN)/uv pip freeze --quiet --python $(BIN)/python | $(SORTED) > $(FLOOR)/ours.txt
	grep $(KEPT:%=-e '^%==') $(FLOOR)/ours.txt > $(FLOOR)/kept.txt
	cd $(ROOT) && $(BIN)/uv pip compile --quiet --no-header --no-annotate --python $(BIN)/python \
	  --resolution lowest-direct --override $(FLOOR)/kept.txt --extra device --extra simulation --extra dev \
	  --output-file $(FLOOR)/lowest.txt pyproject.toml
	$(SORTED) $(FLOOR)/lowest.txt | LC_ALL=C comm -23 - $(FLOOR)/ours.txt > $(FLOOR)/other.txt
	$(BIN)/uv pip install --quiet --no-deps --python $(FLOOR)/bin/python --requirement $(FLOOR)/other.txt
	@touch $@

test-floor: $(FLOOR)/.installed
	cd $(ROOT) && OMP_NUM_THREADS=1 $(FLOOR)/bin/python -m pytest $(PARALLEL) -m "$(HERE) and not thorough" \
	  tests/inputs tests/murmur/learning/data tests/murmur/learning/test_metrics.py

test-browser: $(STAMP)
	cd $(ROOT) && $(BIN)/python -m pytest -m browser

test-long: $(STAMP)
	cd $(ROOT) && $(BIN)/python -m pytest -m long

lint: $(STAMP)
	cd $(ROOT) && $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

# MURMUR_DATA must name the folder with MNIST; see benchmarks/__main__.py for its options.
bench: $(STAMP) $(OTHER)/.installed
	@$(MAKE) --no-print-directory -C $(ROOT) bench-pfl || echo "bench: going on without pfl"
	cd $(ROOT) && $(BIN)/python -m $(if $(filter scale,$(BENCH)),benchmarks.scale,benchmarks $(BENCH))

bench-pfl: $(STAMP)
	@test -e $(ROOT)/runs/pfl-environment/ready || \
	  sh $(ROOT)/benchmarks/pfl-environment.sh $(BIN)/python $(ROOT)/runs/pfl-environment

docs: $(STAMP)
	cd $(ROOT) && NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# Wheels and sdists of all distributions, tried on each Python that this machine has; INSTALL=1 installs
# the libraries of those but our own.
release-check: $(STAMP)
	cd $(ROOT) && $(BIN)/python -m tests.release $(if $(INSTALL),--install)

clean:
	rm -rf $(VENV)
