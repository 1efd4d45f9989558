# make demo          train on two workers, dense and compressed (QUICK=1: a short look; METHOD=OwnersTopK)
# make test-quick    what to run before a commit: tests of every room, in under 4 minutes
# make test          all tests; ARGS="-k name" is passed to pytest, JOBS=0 runs them in it (--pdb)
# make lint          ruff, mypy on the package, and clang-format's check of custom_ops
# make docs          the documentation as a site, in build/site
# make dist          source distribution and wheel, in dist/
# make test-clusters training under a real SLURM, which needs root, and a real Ray, with disturbances
# make soak          50,000 steps on 3 workers, of which one is killed now and then; half an hour
# make test-wheel    the wheel of make dist in a fresh Debian, SUITE=trixie or another (root, debootstrap)
# make tutorial      runs docs/tutorial.md as it stands, and draws its picture
# make test-oldest   the tests that depend most on Keras and TensorFlow, with the oldest of both
# make clean         removes build and run products; keeps .venv and the data sets
# All of them set up .venv first, once per change of the requirements or of the native kernels.

PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo $$p && break; done)
# Many images of containers set it; without compiled modules TensorFlow takes two and a half times as
# long to import, in each process.
export PYTHONDONTWRITEBYTECODE :=
VENV := .venv
INSTALLED := $(VENV)/installed
DOCS_INSTALLED := $(VENV)/docs-installed
RAY := build/ray
OLDEST := build/oldest
OLDEST_TESTS := tests/compat tests/update/test_optimizer.py tests/fit/test_strategy.py tests/fit/test_keras_contract.py tests/state/test_saving.py
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet
NATIVE := setup.py $(shell find custom_ops -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.bzl')
DEMO_FLAGS := $(if $(QUICK),--quick) $(if $(METHOD),--method=$(METHOD))
# Processes that run tests, up to 4: each holds TensorFlow and starts workers, 2 to 3 GB in all.
JOBS ?= $(shell n=$$(nproc); echo $$((n < 4 ? n : 4)))
PYTEST := $(VENV)/bin/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
# What a mark means stands in pyproject.toml.
QUICK_TESTS := not slow and (quick or not multi_worker)

.PHONY: demo test-quick test test-clusters soak lint docs dist test-wheel tutorial test-oldest clean

demo: $(INSTALLED)
	$(VENV)/bin/python benchmarks/demo.py $(DEMO_FLAGS)

test-quick: $(INSTALLED)
	$(PYTEST) -m "$(QUICK_TESTS)" $(ARGS)

test: $(INSTALLED)
	$(PYTEST) -m "not clusters" $(ARGS)

# One after the other, as they count seconds. Where Ray cannot be installed, SLURM is tested all the same.
test-clusters: $(INSTALLED)
	-$(MAKE) $(RAY)/installed
	$(VENV)/bin/python -m pytest -m clusters $(ARGS) tests/launch/test_schedulers.py

soak: $(INSTALLED)
	$(VENV)/bin/python benchmarks/soak --docs $(ARGS)

lint: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run --Werror $(filter %.cc %.h %.cu %.cuh,$(NATIVE))

docs: $(INSTALLED) $(DOCS_INSTALLED)
	$(VENV)/bin/mkdocs build --strict --quiet
	@! grep -rnE '(src|href)="(https?:)?//[^"]*\.(js|css|woff2?|png|ico)"|url\((https?:)?//' build/site \
		--include='*.html' --include='*.css' || { echo "Expected pages that load nothing from" \
		"elsewhere; received the above. Keep it beside the pages."; exit 1; }

dist: $(INSTALLED)
	rm -rf dist
	$(VENV)/bin/python -m build --no-isolation

test-wheel: SUITE ?= trixie
test-wheel: dist
	tests/wheel_in_debian.sh $(SUITE) dist/*.whl $$($(VENV)/bin/python -m pip freeze | grep '^tensorflow==')

tutorial: $(INSTALLED)
	rm -rf build/tutorial && mkdir -p build/tutorial
	TUTORIAL=build/tutorial $(VENV)/bin/python -m pytest tests/project/test_tutorial.py $(ARGS)
	cp build/tutorial/tutorial.png docs/pictures/

# A copy of the sources, as the op library of this folder is built for another TensorFlow.
test-oldest:
	$(PYTHON) -m venv --clear $(OLDEST)/venv
	$(OLDEST)/venv/bin/python -m pip --disable-pip-version-check install --quiet -r requirements-oldest.txt
	rm -rf $(OLDEST)/source && mkdir $(OLDEST)/source
	git archive HEAD | tar -x -C $(OLDEST)/source
	cd $(OLDEST)/source && ../venv/bin/python -m pip --disable-pip-version-check install --quiet \
		--no-deps --no-build-isolation --editable . && ../venv/bin/python -m pytest $(OLDEST_TESTS) $(ARGS)

# A .venv made by hand is adopted; one whose interpreter no longer runs, or that has no pip, as Debian leaves
# it without python3-venv, is made anew.
$(INSTALLED): requirements.txt pyproject.toml $(NATIVE)
	@test -n "$(PYTHON)" || { echo "Expected Python 3.11 to 3.13 on the path; received none." \
		"Install one, or name it: make PYTHON=path/to/python3"; exit 1; }
	$(VENV)/bin/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(PIP) --no-compile -r requirements.txt # what is imported is compiled then: a few modules of many
	$(PIP) --no-deps --no-build-isolation --editable . # compiled for the TensorFlow just installed
	@ls tf_scalecom/ops/*.so >/dev/null 2>&1 || echo "Expected a C++ compiler for the native kernels;" \
		"received none that builds them: plain ones are in use. Install g++, touch setup.py and make again."
	@touch $@

$(RAY)/installed: requirements-ray.txt
	$(PYTHON) -m venv --clear $(RAY)
	$(RAY)/bin/python -m pip --disable-pip-version-check install --quiet -r requirements-ray.txt
	@touch $@

# Waits for the environment also where make works on several targets at once, and is not older for its sake.
$(DOCS_INSTALLED): requirements-docs.txt | $(INSTALLED)
	$(PIP) -r requirements-docs.txt
	@touch $@

clean:
	rm -rf build custom_ops/build dist runs *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
