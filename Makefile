# make run and make test set everything up by themselves, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(PYTHON) -m pip --python $(BIN)/python install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: run test test-extras setup-browser golden check format docs bench bench-large bench-images clean

run: $(READY)
	$(BIN)/bymi run

test: $(READY) check
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Computes the golden runs again, prints what changed and stores it: see tests/golden.
golden: $(READY)
	$(BIN)/python -m tests.golden

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The documentation site, into site/; a warning is an error. For its search: python3 -m http.server --directory site
docs: $(READY)
	$(PIP) --no-build-isolation -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY)
	$(BIN)/python benchmarks/run.py

bench-large: $(READY)
	$(BIN)/python benchmarks/large.py

bench-images: $(READY)
	$(BIN)/python benchmarks/images.py

# Tests of trackers, data frames, Flower and rules beside those of ByzFL, in an environment of its own: their packages are many,
# and Flower needs older versions of some. make test skips them. ByzFL comes without torchvision, which its aggregators do not
# need. The documentation site is built beside them, strictly.
EXTRAS := .venv-extras
EXTRAS_PIP := $(subst $(BIN),$(EXTRAS)/bin,$(subst constraints.txt,constraints-extras.txt,$(PIP)))
test-extras: $(EXTRAS)/.ready docs
	$(EXTRAS)/bin/python -m pytest -q tests/test_trackers.py tests/test_sweep.py tests/test_flower.py tests/test_callables.py

$(EXTRAS)/.ready: pyproject.toml constraints-extras.txt
	test -x $(EXTRAS)/bin/python || $(PYTHON) -m venv $(EXTRAS) 2>/dev/null || $(PYTHON) -m venv --clear --without-pip $(EXTRAS)
	$(EXTRAS_PIP) setuptools
	$(EXTRAS_PIP) --no-build-isolation -e '.[dev,pandas,tensorboard,wandb,mlflow,flower]' 'flwr[simulation]'
	$(EXTRAS_PIP) --no-deps byzfl
	touch $(EXTRAS)/.ready

# For the tests of report pages in a real browser, which skip without one; as root, on Debian or Ubuntu.
setup-browser:
	apt-get install --yes chromium chromium-driver

clean:
	rm -rf $(VENV) build dist src/*.egg-info

# Debian's python3 may come without ensurepip; the pip outside can fill an environment without one of its own.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) 2>/dev/null || $(PYTHON) -m venv --clear --without-pip $(VENV)
	$(PIP) setuptools
	$(PIP) --no-build-isolation -e '.[dev]'
	touch $(READY)
