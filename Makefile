# Everything runs in a virtual environment of its own; only Python 3.11+, git and make are needed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check

# Tests start hundreds of processes: if Python may not keep what it compiles, each of them compiles all libraries again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-slow test-min lint types browser pytest bench bench-search bench-collection bench-images bench-scale bench-stores crashes fuzz audit lock release-check coverage mutants experiments figures reference docs clean

help:  ## what there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

demo: $(VENV)/demo  ## install and run the main job on embedded data; results in auxbit-demo/
	$(BIN)/auxbit demo --out auxbit-demo --force

test: lint  ## lint, types and tests
	@$(MAKE) --no-print-directory -j2 types pytest

lint: $(VENV)/test
	$(BIN)/ruff check src tests benchmarks examples docs/reference
	$(BIN)/ruff format --check src tests benchmarks examples docs/reference/*.py

types: $(VENV)/test
	$(BIN)/mypy

browser:  # for the tests of the web page, which are skipped if there is none
	@sh .ci/browser

# One process imports all test files first, so that those that follow find them compiled, and their libraries. Three
# processes for two cores: many tests wait for other processes. What fails beside others is named, and runs once more
# by itself: a machine that is busy may be too slow for a test of processes.
pytest: $(VENV)/test browser
	@$(BIN)/pytest --collect-only -qq >$(VENV)/collected || (cat $(VENV)/collected; exit 1)
	$(BIN)/pytest -n 3 --no-loadscope-reorder -q || $(BIN)/pytest -q --last-failed --last-failed-no-failures none

test-slow: $(VENV)/test  ## the tests that take minutes: 300 kills of a writer, all paths to answers, all experiments
	$(BIN)/pytest -q -m slow

test-min: .venv-min/done  ## the tests of the library with the lowest versions that pyproject.toml allows
	NUMBA_CACHE_DIR=$(CURDIR)/.venv-min/kernels .venv-min/bin/pytest -n 2 -q $(DEPRECATED) $(LOWEST)

# old versions of matplotlib, typer, faiss and scikit-learn call what new ones of their own dependencies deprecate
DEPRECATED := -W ignore::DeprecationWarning -W ignore::pytest.PytestRemovedIn10Warning
# what needs no server, no browser and none of the tools of `test`
LOWEST := tests/core tests/data tests/mac tests/quantiser tests/hashers tests/index tests/collection tests/export \
	tests/plot tests/cli tests/test_evaluate.py tests/test_package.py
.venv-min/done: pyproject.toml
	$(PYTHON) -m venv .venv-min
	.ci/lowest > .venv-min/lowest.txt
	.venv-min/bin/python -m pip install --quiet -c .venv-min/lowest.txt \
		-e '.[plot,data,images,web,dask,onnx,text,pgvector,sqlite,duckdb]' \
		pytest pytest-xdist pytest-timeout hypothesis httpx psutil 'polars<2'
	@touch $@

bench: $(VENV)/test  ## measure speed and memory (10 minutes; tables go to docs/performance.md)
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/liblinear.py
	$(BIN)/python benchmarks/pictures.py growth

bench-search: $(VENV)/test  ## measure search and coding (an hour; tables go to docs/search.md)
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/coding.py
	$(BIN)/python benchmarks/pictures.py coding

bench-collection: $(VENV)/test  ## measure collections and features (five minutes; tables go to docs/collections.md)
	$(BIN)/python benchmarks/collection.py
	$(BIN)/python benchmarks/features.py

bench-images: $(VENV)/test  ## measure image collections and their server on AUXBIT_DATA/cifar10 (half an hour; docs/images.md)
	$(BIN)/python benchmarks/images.py

bench-scale: $(VENV)/test  ## measure training out of core and on Dask (an hour, 16 GB of memory, 6 GB of disk; docs/scale.md)
	$(BIN)/python benchmarks/large.py
	$(BIN)/python benchmarks/dask_fit.py

bench-stores: $(VENV)/test  ## push a million codes to PostgreSQL and Milvus (half an hour; docs/stores.md)
	$(BIN)/python benchmarks/stores.py

crashes: $(VENV)/test  ## kill writers and simulate power losses thousands of times
	$(BIN)/python benchmarks/crashes.py kill
	$(BIN)/python benchmarks/crashes.py power

fuzz: $(VENV)/test  ## try every reader with changed inputs, chosen by the branches they reach (15 minutes; docs/results/fuzz.jsonl)
	$(PIP) atheris || echo "atheris is not to be had for this Python: mutations alone"
	$(BIN)/python benchmarks/fuzz.py

# strict: without a server that answers, pip-audit would call what it could not look up free of weaknesses
audit: $(VENV)/test  ## known weaknesses of what is pinned (asks a server for them), and licences of what is installed
	$(PIP) pip-audit pip-licenses
	$(BIN)/pip-licenses --order=license --partial-match --fail-on 'AGPL;GPLv2;GPLv3;GNU General Public'
	$(BIN)/pip-audit --strict --disable-pip -r requirements-dev.lock

lock: $(VENV)/bin/python  ## choose versions of all that `test` needs again: requirements-dev.lock, with hashes
	$(PIP) uv
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --extra test --generate-hashes \
		--no-annotate --custom-compile-command 'make lock' pyproject.toml -o requirements-dev.lock

release-check:  ## refuse a release whose tag (TAG=v1.2.3, or that of the current commit) is not that of the version
	@.ci/release-check $(TAG)

coverage: $(VENV)/test  ## branches of src that the tests reach (half an hour; compiled kernels are left out)
	$(PIP) 'coverage>=7.10'
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2 --no-loadscope-reorder -q
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

mutants: $(VENV)/test  ## change the source at random, 50 places a package: do tests notice? (hours; docs/results/mutants.jsonl)
	$(PIP) cosmic-ray
	$(BIN)/python benchmarks/mutants.py

experiments: $(VENV)/test  ## the paper's experiments on AUXBIT_DATA's data sets, into docs/ (an hour; AUXBIT_DATA/cifar10 too)
	$(BIN)/auxbit experiment all --preset paper --data cifar10 --data mnist --data siftsmall --data sift_photos --out auxbit-experiments
	$(BIN)/python benchmarks/experiments.py auxbit-experiments
	$(BIN)/python benchmarks/speed.py paper

figures: $(VENV)/test  ## measure the figures of the other pages of docs/ again (half an hour)
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/methods.py
	$(BIN)/python benchmarks/liblinear.py loop

reference: $(VENV)/test  ## write docs/cli.md again from --help, and the figure of docs/architecture.md
	$(BIN)/python -m auxbit.cli.reference
	$(BIN)/python docs/reference/layers.py

docs: $(VENV)/test  ## run the gallery and build the site into site/ (`python -m http.server -d site` shows it)
	$(BIN)/python docs/reference/gallery.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:  ## remove the virtual environment and what the demo wrote
	rm -rf $(VENV) .venv-min build site auxbit-demo auxbit-experiments auxbit-screenshots

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e '.[plot]'
	@touch $@

$(VENV)/test: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e '.[test]'
	@touch $@
