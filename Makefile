# The two commands are `make demo` and `make test`; each does all of its own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
DEVELOPS := $(VENV)/.develops
DEMO ?= --report demo-report.json

.PHONY: demo test test-dashboards test-kubernetes test-slurm check format docs components clean

# What running needs comes first and alone: a demonstration should not wait for linters.
$(RUNS): pyproject.toml
	@./packaging/environment.sh $(PYTHON) $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(DEVELOPS): $(RUNS)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
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

check: $(DEVELOPS)  ## style, types, import rules, generated pages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy dashboards/*/*.dashboard.py
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check

format: $(DEVELOPS)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(DEVELOPS)  ## the reference pages, from the catalogue and --help; dashboards and rules into the chart
	$(BIN)/python docs/generate.py
	$(BIN)/python deploy/helm/build.py

components:  ## the real components that some tests run against (as root, on Debian)
	./packaging/components.sh
	./packaging/accasim.sh $(PYTHON)
	./packaging/grafana-dashboards-builder.sh $(PYTHON)
	$(PYTHON) packaging/kubernetes/helm.py
	$(PYTHON) packaging/kubernetes/monitoring.py
	./packaging/kubernetes/build.sh

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
