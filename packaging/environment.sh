#!/bin/sh
# Makes the virtual environment $2 with the interpreter $1, on a machine that may have only Python itself.
# Debian has venv's pip in a separate package: as root, install it; otherwise print its name.
set -eu
python=$1
environment=$2
"$python" -c 'import sys; sys.exit("gangwatch needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    package=$("$python" -c 'import sys; print("python3.%d-venv" % sys.version_info[1])')
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "$python cannot make virtual environments: install $package (Debian: apt-get install $package)" >&2
        exit 1
    fi
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$package"
fi
"$python" -m venv "$environment"
