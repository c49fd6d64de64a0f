# Every target does its own set-up in .venv; nothing else on the machine is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
export OMP_NUM_THREADS ?= 1

.PHONY: demo serve test test-processes test-flower check bench docs site docker-check hashes materials audit-dependencies clean

# What the demo needs, and nothing for developers; after that `make test` adds the rest, and the other way round.
# Every file is checked against its hash where hashes/ has this platform; torch, which differs by registry, is not.
$(VENV)/.demo-ready: pyproject.toml constraints.txt hashes/demo.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python tools/supply_chain.py install demo
	$(INSTALL) $$($(BIN)/python tools/supply_chain.py isolation) -c constraints.txt -e '.[train,report,release,serve]'
	touch $@

$(VENV)/.ready: $(VENV)/.demo-ready hashes/test.txt
	$(BIN)/python tools/supply_chain.py install test
	$(INSTALL) $$($(BIN)/python tools/supply_chain.py isolation) -c constraints.txt -e '.[dev]'
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

hashes: $(VENV)/.ready  ## write hashes/ again, after constraints.txt has changed; needs the registry of pip
	$(BIN)/python tools/supply_chain.py hashes

materials: $(VENV)/.ready  ## a CycloneDX bill of what the package stands on: materials.json
	$(BIN)/python tools/supply_chain.py materials materials.json

# pip-audit lives in an environment of its own; it asks a public database for known vulnerabilities of these versions.
.venv-audit/.ready:
	test -x .venv-audit/bin/python || $(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check 'pip-audit>=2.7,<3'
	touch $@

audit-dependencies: .venv-audit/.ready  ## known vulnerabilities of the pins; needs a network
	.venv-audit/bin/pip-audit --disable-pip --no-deps -r hashes/demo.txt -r hashes/test.txt

clean:
	rm -rf $(VENV) .venv-bench .venv-audit materials.json .mypy_cache .ruff_cache .pytest_cache site report.html veilrec-demo runs
