#!/bin/sh
# Makes tests/dashboards/grafana-VERSION.schema.json: Grafana's own dashboard types as a JSON schema. Needs npm.
#   packaging/grafana-schema.sh
set -eu
version=13.2.3
target=$PWD/tests/dashboards/grafana-$version.schema.json
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --no-audit --no-fund --ignore-scripts "@grafana/schema@$version" ts-json-schema-generator@2.9.0
echo "export type { Dashboard } from '@grafana/schema/dist/types/raw/dashboard/x/types.gen';" >entry.ts
npx ts-json-schema-generator --path entry.ts --type Dashboard --no-type-check --out "$target"
