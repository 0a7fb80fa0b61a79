#!/bin/sh
# Builds KWOK from its own module, once per machine, and copies its stages: hollow nodes of benchmarks.kubernetes, whose
# pods run without containers.
#   build.sh
# Output folder: KUBEBUILDER_ASSETS if set, else ${XDG_CACHE_HOME:-~/.cache}/gangwatch/kubernetes/bin. Needs go (the
# version in go.mod) and the Go module proxy. `make components` does not run it: only `benchmarks.kubernetes --hollow` needs it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${KUBEBUILDER_ASSETS:-${XDG_CACHE_HOME:-$HOME/.cache}/gangwatch/kubernetes/bin}
module=sigs.k8s.io/kwok
version=$(sed -n "s|^require $module \(v[0-9.]*\).*|\1|p" "$here/go.mod")
[ -n "$version" ] || { echo "packaging/kubernetes/kwok/go.mod requires no version of $module" >&2; exit 1; }
program=$folder/kwok
[ -x "$program" ] && [ "$(cat "$program.version" 2>/dev/null)" = "$version" ] && exit 0
PATH="$PATH:/usr/local/go/bin"
command -v go >/dev/null || { echo "packaging/kubernetes/kwok/build.sh: go is missing, so KWOK can't be built: see packaging/kubernetes/build.sh" >&2; exit 1; }
mkdir -p "$folder"
echo "building kwok $version (once per machine; takes some minutes)" >&2
cd "$here"
CGO_ENABLED=0 go build -mod=readonly -trimpath -buildvcs=false -ldflags "-s -w" -o "$program.new" "$module/cmd/kwok"
# Pods run and are deleted at once; those of Jobs do not end by themselves. Nodes get a heartbeat.
stages=$(go list -mod=readonly -m -f '{{.Dir}}' "$module")/kustomize/stage
for stage in pod/fast/pod-ready pod/fast/pod-delete node/fast/node-initialize node/heartbeat-with-lease/node-heartbeat-with-lease; do
    echo "---"
    cat "$stages/$stage.yaml"
done >"$folder/kwok-stages.yaml"
mv "$program.new" "$program"
echo "$version" >"$program.version"
