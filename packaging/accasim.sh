#!/bin/sh
# Makes a separate environment for AccaSim; tests/sim compares our EASY backfilling with it. Idempotent.
#   packaging/accasim.sh PYTHON
set -eu
environment=.cache/accasim
"$environment/bin/python" -c 'import importlib.metadata as m; assert m.version("accasim") == "1.1.3"' 2>/dev/null && exit 0
./packaging/environment.sh "$1" "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check accasim==1.1.3
