# Every target does its own set-up in .venv; nothing else on the machine is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
export OMP_NUM_THREADS ?= 1

.PHONY: demo serve test test-processes test-flower check bench docs site docker-check clean

# What the demo needs, and nothing for developers; after that `make test` adds the rest, and the other way round.
$(VENV)/.demo-ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -c constraints.txt -e '.[train,report,release,serve]'
	touch $@

$(VENV)/.ready: $(VENV)/.demo-ready
	$(INSTALL) -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.demo-ready  ## install (once), train on made-up data and write report.html
	$(BIN)/veilrec demo --report report.html

serve: $(VENV)/.demo-ready  ## the page of the demo, at http://127.0.0.1:8337, until Ctrl-C; runs the demo if it has not run
	test -f veilrec-demo/release/manifest.json || $(BIN)/veilrec demo --report report.html
	$(BIN)/veilrec serve veilrec-demo/release

test: $(VENV)/.ready  ## all tests
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-processes: $(VENV)/.ready  ## every federated method once over real processes, against its simulation; fault injection
	$(BIN)/python -m pytest -n 2 -m processes

test-flower: .venv-bench/.ready  ## what needs Flower itself, which lives in the environment of the peers
	.venv-bench/bin/python -m pytest tests/federation/test_flower.py

check: $(VENV)/.ready  ## style, types, import rules, and the site of the docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict --quiet

.venv-bench/.ready: pyproject.toml constraints-bench.txt
	test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-bench.txt -e '.[bench,flower]' pytest hypothesis
	touch $@

bench: .venv-bench/.ready  ## against the peers, which live in an environment of their own
	.venv-bench/bin/python benchmarks/simulate.py
	.venv-bench/bin/python benchmarks/serve.py
	.venv-bench/bin/python benchmarks/secagg.py

docs: $(VENV)/.ready  ## check that every command in README and docs exists
	$(BIN)/python -m pytest tests/test_docs.py

site: $(VENV)/.ready  ## docs/ as a site: open site/index.html
	$(BIN)/mkdocs build --strict --quiet

docker-check: $(VENV)/.ready  ## the steps of the Dockerfile in a temporary folder: without Docker, in minutes
	$(BIN)/python tests/docker_steps.py

clean:
	rm -rf $(VENV) .venv-bench .mypy_cache .ruff_cache .pytest_cache site report.html veilrec-demo runs
