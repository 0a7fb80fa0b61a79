#!/bin/sh
# Builds kube-apiserver, kube-controller-manager, kube-scheduler and kubelet from their own module, once per machine.
#   build.sh [PROGRAM...]    by default all but kubelet, which only packaging/cluster needs
# Output folder: KUBEBUILDER_ASSETS if set, else ${XDG_CACHE_HOME:-~/.cache}/gangwatch/kubernetes/bin. A program that is
# there in the required version is not built again. Needs go (the version in go.mod) and the Go module proxy.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${KUBEBUILDER_ASSETS:-${XDG_CACHE_HOME:-$HOME/.cache}/gangwatch/kubernetes/bin}
version=$(sed -n 's|^[^/]*k8s.io/kubernetes \(v[0-9.]*\).*|\1|p' "$here/go.mod")
[ -n "$version" ] || { echo "packaging/kubernetes/go.mod requires no version of k8s.io/kubernetes" >&2; exit 1; }
[ $# -gt 0 ] || set -- kube-apiserver kube-controller-manager kube-scheduler
missing=""
for program in "$@"; do
    [ -x "$folder/$program" ] && [ "$(cat "$folder/$program.version" 2>/dev/null)" = "$version" ] || missing="$missing $program"
done
[ -z "$missing" ] && exit 0
PATH="$PATH:/usr/local/go/bin"
if ! command -v go >/dev/null; then
    echo "packaging/kubernetes/build.sh: go is missing, so$missing can't be built: install go $(sed -n 's/^go //p' "$here/go.mod") (https://go.dev/dl/), or set KUBEBUILDER_ASSETS to a folder that has them" >&2
    exit 1
fi
mkdir -p "$folder"
minor=$(echo "$version" | cut -d. -f2)
stamp="k8s.io/component-base/version"
for program in $missing; do
    echo "building $program $version (once per machine; takes some minutes)" >&2
    (cd "$here" && CGO_ENABLED=0 go build -mod=readonly -trimpath -buildvcs=false \
        -ldflags "-s -w -X $stamp.gitVersion=$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=$minor" \
        -o "$folder/$program.new" "k8s.io/kubernetes/cmd/$program")
    mv "$folder/$program.new" "$folder/$program"
    echo "$version" >"$folder/$program.version"
done
