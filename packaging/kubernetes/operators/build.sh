#!/bin/sh
# Builds Kubeflow's training operator from its own module, once per machine, and copies its definition of PyTorchJobs.
#   build.sh
# Output folder: KUBEBUILDER_ASSETS if set, else ${XDG_CACHE_HOME:-~/.cache}/gangwatch/kubernetes/bin. Needs go (the
# version in ../go.mod) and the Go module proxy.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${KUBEBUILDER_ASSETS:-${XDG_CACHE_HOME:-$HOME/.cache}/gangwatch/kubernetes/bin}
module=github.com/kubeflow/training-operator
version=$(sed -n "s|^require $module \(v[0-9.]*\).*|\1|p" "$here/go.mod")
[ -n "$version" ] || { echo "packaging/kubernetes/operators/go.mod requires no version of $module" >&2; exit 1; }
program=$folder/training-operator
[ -x "$program" ] && [ "$(cat "$program.version" 2>/dev/null)" = "$version" ] && exit 0
PATH="$PATH:/usr/local/go/bin"
command -v go >/dev/null || { echo "packaging/kubernetes/operators/build.sh: go is missing, so the training operator can't be built: see packaging/kubernetes/build.sh" >&2; exit 1; }
mkdir -p "$folder"
echo "building training-operator $version (once per machine; takes some minutes)" >&2
cd "$here"
CGO_ENABLED=0 go build -mod=readonly -trimpath -buildvcs=false -ldflags "-s -w" -o "$program.new" "$module/cmd/training-operator.v1"
install -m 644 "$(go list -mod=readonly -m -f '{{.Dir}}' "$module")/manifests/base/crds/kubeflow.org_pytorchjobs.yaml" "$folder/pytorchjobs.yaml"
mv "$program.new" "$program"
echo "$version" >"$program.version"
