# The two commands are `make demo` and `make test`; each does all of its own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
DEVELOPS := $(VENV)/.develops
TOOLS := .cache/tools
MINIMUMS := .cache/minimums
# The lock of the lowest versions is for this Python: old versions have no wheels for newer ones.
OLDEST_PYTHON ?= python3.11
MINIMUM_TESTS ?= tests/core tests/exporter tests/api tests/detect tests/agent/test_kubelet.py tests/agent/test_nvml_*.py \
  tests/web/test_pages.py tests/security/test_login.py tests/security/test_http.py tests/kubernetes/test_client.py \
  tests/kubernetes/test_kubeconfig.py tests/kubernetes/test_token_review.py tests/dashboards/test_dashboards.py \
  tests/deploy/test_extras.py tests/gangwatch/test_check.py tests/gangwatch/test_cli_*.py
DEMO ?= --report demo-report.json
NODES ?= 3
GPUS ?= 0
LOCKS := packaging/locks
# What is installed has the versions and hashes of packaging/locks, and builds nothing.
LOCKED := install --quiet --disable-pip-version-check --require-hashes --only-binary :all:
OURSELVES := install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .

.PHONY: demo demo-kubernetes test test-dashboards test-kubernetes test-slurm minimums check format docs docs-serve man components cluster cluster-down lock sbom clean

# Material's notice about its successor: docs/adr/0043.
export NO_MKDOCS_2_WARNING := 1

# Core and all extras come first and alone: a demonstration should not wait for linters.
$(RUNS): pyproject.toml $(LOCKS)/all.txt $(LOCKS)/build.txt
	@./packaging/environment.sh $(PYTHON) $(VENV)
	$(BIN)/pip $(LOCKED) -r $(LOCKS)/all.txt -r $(LOCKS)/build.txt
	$(BIN)/pip $(OURSELVES)
	@touch $@

$(DEVELOPS): $(RUNS) $(LOCKS)/dev.txt
	$(BIN)/pip $(LOCKED) -r $(LOCKS)/dev.txt
	@touch $@

$(TOOLS)/.made: $(LOCKS)/tools.txt $(LOCKS)/build.txt
	@./packaging/environment.sh $(PYTHON) $(TOOLS)
	$(TOOLS)/bin/pip $(LOCKED) -r $(LOCKS)/tools.txt -r $(LOCKS)/build.txt
	@touch $@

$(MINIMUMS)/.made: pyproject.toml $(LOCKS)/minimums.txt
	@./packaging/environment.sh $(OLDEST_PYTHON) $(MINIMUMS)
	$(MINIMUMS)/bin/pip $(LOCKED) -r $(LOCKS)/minimums.txt
	$(MINIMUMS)/bin/pip $(OURSELVES)
	@touch $@

demo: $(RUNS)  ## a real straggler on this machine: found, moved away from, backfilled behind
	$(BIN)/gangwatch demo $(DEMO)

demo-kubernetes: $(DEVELOPS)  ## the same with real kubelets and containers (as root, on Debian, after make components)
	$(BIN)/python -m benchmarks.kubernetes_demo $(DEMO)

test: $(DEVELOPS)  ## everything that can run here; what is absent is named
	$(BIN)/python -m tests.run

test-slurm: $(DEVELOPS)  ## the Slurm backend against a real slurmctld with 64 slurmd (as root, on Debian)
	$(BIN)/pytest tests/slurm

test-dashboards: $(DEVELOPS)  ## dashboards, rules and alerts, against a real Prometheus and Alertmanager
	$(BIN)/pytest tests/dashboards

test-kubernetes: $(DEVELOPS)  ## the Kubernetes backend against a real API server and real kubelets, and the chart
	$(BIN)/python -m tests.run tests/kubernetes tests/deploy/test_chart.py

minimums: $(MINIMUMS)/.made  ## a fast part of the tests, with the lowest version of each requirement (Python 3.11)
	$(MINIMUMS)/bin/python -m pytest -q -n 2 $(MINIMUM_TESTS)

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
	$(BIN)/python deploy/helm/readme.py
	$(BIN)/mkdocs build --strict
	@echo "build/site/index.html"

docs-serve: $(DEVELOPS)  ## the documentation site on http://127.0.0.1:8000, built again on each change
	$(BIN)/mkdocs serve

man: $(DEVELOPS)  ## manual pages of all commands: build/man/*.1
	$(BIN)/python packaging/man.py build/man

lock: $(TOOLS)/.made  ## versions and hashes for what pyproject.toml asks for; UPGRADE=--upgrade takes the newest
	$(TOOLS)/bin/python packaging/lock.py $(UPGRADE)

sbom: $(TOOLS)/.made  ## the bill of materials of the controller's image, as CycloneDX JSON: build/gangwatch.cdx.json
	./packaging/sbom.sh $(PYTHON) $(TOOLS) build/gangwatch.cdx.json

components:  ## the real components that some tests run against (as root, on Debian)
	./packaging/components.sh
	./packaging/accasim.sh $(PYTHON)
	./packaging/torch.sh $(PYTHON)
	./packaging/frameworks.sh $(PYTHON)
	./packaging/grafana-dashboards-builder.sh $(PYTHON)
	$(PYTHON) packaging/kubernetes/helm.py
	$(PYTHON) packaging/kubernetes/monitoring.py
	./packaging/kubernetes/build.sh
	./packaging/kubernetes/operators/build.sh
	./packaging/otlp/build.sh
	./packaging/cluster/programs.sh
	./packaging/cluster/images.sh

cluster:  ## Kubernetes with NODES=3 real kubelets (GPUS=3 fake GPUs each) here (as root, on Debian); docs/how-to/cluster.md
	./packaging/cluster/programs.sh
	./packaging/cluster/images.sh
	$(PYTHON) packaging/cluster/cluster.py up --nodes $(NODES) --gpus $(GPUS)

cluster-down:  ## remove the cluster: processes, namespaces, interfaces, control groups and files
	$(PYTHON) packaging/cluster/cluster.py down

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
