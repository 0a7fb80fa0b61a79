#!/bin/sh
# Makes a separate environment for grafana-dashboards-builder; tests/dashboards loads our dashboards with it. Idempotent.
# It requires click < 8 and grafanalib < 0.6, and installs a top-level package called `builder`.
#   packaging/grafana-dashboards-builder.sh PYTHON
set -eu
environment=.cache/grafana-dashboards-builder
"$environment/bin/python" -c 'import importlib.metadata as m; assert m.version("grafana-dashboards-builder") == "0.3.1"' 2>/dev/null && exit 0
./packaging/environment.sh "$1" "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check 'grafana-dashboards-builder==0.3.1' 'click<8' \
    'grafanalib<0.6' 'grafana-foundation-sdk==0.0.21' 'pyyaml>=6.0.1' 'setuptools<81'
