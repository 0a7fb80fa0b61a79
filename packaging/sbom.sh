#!/bin/sh
# Writes the bill of materials of the controller image's PyPI packages, as CycloneDX JSON: sbom.sh PYTHON TOOLS FILE
# TOOLS: a virtual environment with packaging/locks/tools.txt and build.txt. The same steps as the Dockerfile's.
set -eu
python=$1
tools=$2
file=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv --without-pip "$folder/environment"
install() {
    "$tools/bin/pip" --python "$folder/environment/bin/python" install --quiet --disable-pip-version-check "$@"
}
install --require-hashes --only-binary :all: -r packaging/locks/controller.txt
"$tools/bin/python" -m hatchling build -t wheel -d "$folder/dist" >/dev/null
install --no-deps --no-index "$folder"/dist/*.whl
mkdir -p "$(dirname "$file")"
"$tools/bin/cyclonedx-py" environment --pyproject pyproject.toml --output-reproducible --of JSON -o "$file" \
    "$folder/environment/bin/python"
echo "$file"
