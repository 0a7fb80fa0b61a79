# The two commands are `make demo` and `make test`; each does all of its own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
DEVELOPS := $(VENV)/.develops
TOOLS := .cache/tools
DEMO ?= --report demo-report.json
LOCKS := packaging/locks
# What is installed has the versions and hashes of packaging/locks, and builds nothing.
LOCKED := install --quiet --disable-pip-version-check --require-hashes --only-binary :all:
OURSELVES := install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .

.PHONY: demo test test-dashboards test-kubernetes test-slurm check format docs docs-serve components lock sbom clean

# Material's notice about its successor: docs/adr/0043.
export NO_MKDOCS_2_WARNING := 1

# What running needs comes first and alone: a demonstration should not wait for linters.
$(RUNS): pyproject.toml $(LOCKS)/runtime.txt $(LOCKS)/build.txt
	@./packaging/environment.sh $(PYTHON) $(VENV)
	$(BIN)/pip $(LOCKED) -r $(LOCKS)/runtime.txt -r $(LOCKS)/build.txt
	$(BIN)/pip $(OURSELVES)
	@touch $@

$(DEVELOPS): $(RUNS) $(LOCKS)/dev.txt
	$(BIN)/pip $(LOCKED) -r $(LOCKS)/dev.txt
	@touch $@

$(TOOLS)/.made: $(LOCKS)/tools.txt $(LOCKS)/build.txt
	@./packaging/environment.sh $(PYTHON) $(TOOLS)
	$(TOOLS)/bin/pip $(LOCKED) -r $(LOCKS)/tools.txt -r $(LOCKS)/build.txt
	@touch $@

demo: $(RUNS)  ## a real straggler on this machine: found, moved away from, backfilled behind
	$(BIN)/gangwatch demo $(DEMO)

test: $(DEVELOPS)  ## everything that can run here; what is absent is named
	$(BIN)/python -m tests.run

test-slurm: $(DEVELOPS)  ## the Slurm backend against a real slurmctld with 64 slurmd (as root, on Debian)
	$(BIN)/pytest tests/slurm

test-dashboards: $(DEVELOPS)  ## dashboards, rules and alerts, against a real Prometheus and Alertmanager
	$(BIN)/pytest tests/dashboards

test-kubernetes: $(DEVELOPS)  ## the Kubernetes backend against a real API server (packaging/kubernetes), and the chart
	$(BIN)/pytest tests/kubernetes tests/deploy/test_chart.py

check: $(DEVELOPS)  ## style, types, import rules, generated pages, links of the documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy dashboards/*/*.dashboard.py
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check
	$(BIN)/mkdocs build --strict
	$(BIN)/python packaging/lock.py --check

format: $(DEVELOPS)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(DEVELOPS)  ## the reference pages, from the catalogue and --help; dashboards and rules into the chart; the site
	$(BIN)/python docs/generate.py
	$(BIN)/python deploy/helm/build.py
	$(BIN)/mkdocs build --strict
	@echo "build/site/index.html"

docs-serve: $(DEVELOPS)  ## the documentation site on http://127.0.0.1:8000, built again on each change
	$(BIN)/mkdocs serve

lock: $(TOOLS)/.made  ## versions and hashes for what pyproject.toml asks for; UPGRADE=--upgrade takes the newest
	$(TOOLS)/bin/python packaging/lock.py $(UPGRADE)

sbom: $(TOOLS)/.made  ## the bill of materials of the image, as CycloneDX JSON: build/gangwatch.cdx.json
	./packaging/sbom.sh $(PYTHON) $(TOOLS) build/gangwatch.cdx.json

components:  ## the real components that some tests run against (as root, on Debian)
	./packaging/components.sh
	./packaging/accasim.sh $(PYTHON)
	./packaging/grafana-dashboards-builder.sh $(PYTHON)
	$(PYTHON) packaging/kubernetes/helm.py
	$(PYTHON) packaging/kubernetes/monitoring.py
	./packaging/kubernetes/build.sh

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
