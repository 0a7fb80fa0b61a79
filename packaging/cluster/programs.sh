#!/bin/sh
# Gets what a cluster on one machine needs, once per machine: runc, CNI plug-ins, buildah and ctr from Debian's packages,
# containerd, CoreDNS and Kubernetes' programs (packaging/kubernetes) from their modules. On Debian; needs apt-get, gcc
# and go, and not root.
#   programs.sh
# The packages are unpacked into ${XDG_CACHE_HOME:-~/.cache}/gangwatch/cluster and not installed: no service starts, and a
# containerd of this machine keeps its configuration.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gangwatch/cluster
packages="containerd runc containernetworking-plugins debootstrap
    buildah uidmap golang-github-containers-common libgpgme11 libassuan0 libsubid4"
for program in apt-get dpkg gcc; do
    command -v "$program" >/dev/null || { echo "packaging/cluster/programs.sh: $program is missing; the cluster needs Debian 12 or newer, and gcc" >&2; exit 1; }
done
if [ ! -e "$cache/programs/.complete" ]; then
    rm -rf "$cache/programs.new" "$cache/packages"
    mkdir -p "$cache/programs.new" "$cache/packages"
    # shellcheck disable=SC2086
    (cd "$cache/packages" && apt-get download -q -o APT::Sandbox::User=root $packages) || {
        echo "packaging/cluster/programs.sh: apt-get could not download Debian's packages: run apt-get update, and try again" >&2
        exit 1
    }
    for package in "$cache"/packages/*.deb; do dpkg -x "$package" "$cache/programs.new"; done
    rm -rf "$cache/packages" "$cache/programs"
    gcc -Os -static -o "$cache/programs.new/pause" "$here/pause.c"
    touch "$cache/programs.new/.complete"
    mv "$cache/programs.new" "$cache/programs"
fi
PATH="$PATH:/usr/local/go/bin"
command -v go >/dev/null || { echo "packaging/cluster/programs.sh: go is missing: install go $(sed -n 's/^go //p' "$here/dns/go.mod") or newer (https://go.dev/dl/)" >&2; exit 1; }
if [ ! -x "$cache/programs/usr/bin/coredns" ]; then
    echo "building coredns (once per machine; takes some minutes)" >&2
    (cd "$here/dns" && CGO_ENABLED=0 go build -mod=readonly -trimpath -buildvcs=false -ldflags "-s -w" -o "$cache/programs/usr/bin/coredns" .)
fi
# Debian's containerd 1.6 ignores the devices that a DRA driver prepares: the container device interface came with 1.7.
release=$(sed -n 's|^require github.com/containerd/containerd/v2 \(v[0-9.]*\).*|\1|p' "$here/containerd/go.mod")
[ -n "$release" ] || { echo "packaging/cluster/containerd/go.mod requires no version of containerd" >&2; exit 1; }
if [ "$(cat "$cache/containerd/version" 2>/dev/null)" != "$release" ]; then
    echo "building containerd $release (once per machine; takes some minutes)" >&2
    mkdir -p "$cache/containerd"
    for program in containerd containerd-shim-runc-v2; do
        (cd "$here/containerd" && CGO_ENABLED=0 go build -mod=readonly -trimpath -buildvcs=false -ldflags "-s -w" \
            -tags no_btrfs,no_devmapper,no_zfs -o "$cache/containerd/$program" "github.com/containerd/containerd/v2/cmd/$program")
    done
    echo "$release" >"$cache/containerd/version"
fi
"$here/../kubernetes/build.sh" kube-apiserver kube-controller-manager kube-scheduler kubelet
"${PYTHON:-python3}" "$here/../kubernetes/helm.py"
