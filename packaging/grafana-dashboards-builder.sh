#!/bin/sh
# An environment of its own for grafana-dashboards-builder, which tests/dashboards has load our dashboards. Idempotent.
# It wants click < 8 and grafanalib < 0.6, and puts a package called `builder` beside whatever is there.
#   packaging/grafana-dashboards-builder.sh PYTHON
set -eu
environment=.cache/grafana-dashboards-builder
"$environment/bin/python" -c 'import importlib.metadata as m; assert m.version("grafana-dashboards-builder") == "0.3.1"' 2>/dev/null && exit 0
./packaging/environment.sh "$1" "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check 'grafana-dashboards-builder==0.3.1' 'click<8' \
    'grafanalib<0.6' 'grafana-foundation-sdk==0.0.21' 'pyyaml>=6.0.1' 'setuptools<81'
