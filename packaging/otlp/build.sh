#!/bin/sh
# Builds the OpenTelemetry Collector, and a Prometheus that receives OTLP and discovers pods, from their own modules, once per machine.
#   build.sh [otelcol] [prometheus]    by default both
# Output folder: ${XDG_CACHE_HOME:-~/.cache}/gangwatch/otlp/bin. A program that is there in the required version is not built
# again. Needs go (the version in the go.mod files) and the Go module proxy.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/gangwatch/otlp/bin
PATH="$PATH:/usr/local/go/bin"
[ $# -gt 0 ] || set -- otelcol prometheus

build() {
    program=$1 module=$2 package=$3 tags=$4
    stamp=$({ echo "$tags"; cat "$here/$module"/go.mod "$here/$module"/go.sum "$here/$module"/*.go 2>/dev/null || true; } | sha256sum | cut -c1-16)
    [ -x "$folder/$program" ] && [ "$(cat "$folder/$program.version" 2>/dev/null)" = "$stamp" ] && return
    if ! command -v go >/dev/null; then
        echo "packaging/otlp/build.sh: go is missing, so $program can't be built: install go $(sed -n 's/^go //p' "$here/$module/go.mod") (https://go.dev/dl/)" >&2
        exit 1
    fi
    mkdir -p "$folder"
    echo "building $program (once per machine; takes some minutes)" >&2
    (cd "$here/$module" && CGO_ENABLED=0 go build -p 2 -mod=readonly -trimpath -buildvcs=false -tags "$tags" -ldflags "-s -w" \
        -o "$folder/$program.new" "$package")
    mv "$folder/$program.new" "$folder/$program"
    echo "$stamp" >"$folder/$program.version"
}

for program in "$@"; do
    case $program in
    otelcol) build otelcol collector . "" ;;
    # With the discovery of Kubernetes alone: the others pull in the libraries of all clouds.
    prometheus) build prometheus prometheus github.com/prometheus/prometheus/cmd/prometheus remove_all_sd,enable_kubernetes_sd ;;
    *) echo "packaging/otlp/build.sh: unknown program $program" >&2; exit 1 ;;
    esac
done
