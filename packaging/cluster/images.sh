#!/bin/sh
# Builds the images of the cluster without a registry, as root: the agent's and the controller's from the Dockerfile, and
# pause.
#   images.sh
# Output: agent.tar, controller.tar and pause.tar in ${XDG_CACHE_HOME:-~/.cache}/gangwatch/cluster/images, which cluster.py imports.
# BASE of the Dockerfile is a root file system of Debian's packages. GANGWATCH_IMAGE_BASE names another base image.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gangwatch/cluster
programs=$cache/programs
mirror=${GANGWATCH_DEBIAN_MIRROR:-http://deb.debian.org/debian}
if [ "$(id -u)" -ne 0 ] || [ ! -e "$programs/.complete" ]; then
    echo "packaging/cluster/images.sh: needs root, and the programs that packaging/cluster/programs.sh gets" >&2
    exit 1
fi
# In mount namespaces of its own, so that no mount remains. buildah finds its libraries where Debian installs them.
[ "${1:-}" = --mounted ] || exec unshare --mount "$0" --mounted
libraries=/usr/lib/$(gcc -print-multiarch)
mount -t overlay overlay -o "lowerdir=$programs$libraries:$libraries" "$libraries"
mkdir -p "$cache/images" "$cache/buildah"
export PATH="$programs/usr/bin:$programs/usr/sbin:$PATH"
export CONTAINERS_CONF="$programs/usr/share/containers/containers.conf" CONTAINERS_REGISTRIES_CONF="$cache/buildah/registries.conf"
export CONTAINERS_STORAGE_CONF="$cache/buildah/storage.conf" BUILDAH_ISOLATION=chroot
echo 'unqualified-search-registries = []' >"$CONTAINERS_REGISTRIES_CONF"
printf '[storage]\ndriver = "overlay"\ngraphroot = "%s"\nrunroot = "%s"\n' "$cache/buildah/storage" "$cache/buildah/run" >"$CONTAINERS_STORAGE_CONF"
policy="--signature-policy=$programs/etc/containers/policy.json"

# Debian's packages, as the Dockerfile's base image has them: Python with venv, openssl and certificates.
base=${GANGWATCH_IMAGE_BASE:-localhost/gangwatch-base}
if [ -z "${GANGWATCH_IMAGE_BASE:-}" ] && ! buildah inspect --type image "$base" >/dev/null 2>&1; then
    root=$cache/base
    rm -rf "$root"
    echo "making the base image of Debian's packages (once per machine; takes a minute or two)" >&2
    DEBOOTSTRAP_DIR="$programs/usr/share/debootstrap" sh "$programs/usr/sbin/debootstrap" --variant=minbase \
        --include=python3,python3-venv,python-is-python3,openssl,ca-certificates bookworm "$root" "$mirror" >"$cache/base.log" 2>&1 || {
        tail -5 "$cache/base.log" >&2
        echo "packaging/cluster/images.sh: debootstrap failed; its log is $cache/base.log" >&2
        exit 1
    }
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    printf 'FROM scratch\nCOPY . /\n' | buildah bud $policy -q -t "$base" -f - "$root" >/dev/null
    rm -rf "$root"
fi

version=$(sed -n 's/^appVersion: *"\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' "$source/deploy/helm/gangwatch/Chart.yaml")
agent=ghcr.io/gangwatch/gangwatch-agent:$version controller=ghcr.io/gangwatch/gangwatch:$version
# The packages of the locks are downloaded through the certificates and the index that this machine is configured for.
set -- --volume /etc/ssl/certs:/etc/ssl/certs:ro
[ ! -e /etc/pip.conf ] || set -- "$@" --volume /etc/pip.conf:/etc/pip.conf:ro
for one in "agent $agent" "controller $controller"; do
    buildah bud $policy --layers --build-arg "BASE=$base" "$@" --target "${one% *}" -t "${one#* }" -f "$source/Dockerfile" "$source"
done

printf 'FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT ["/pause"]\n' | buildah bud $policy -q -t localhost/pause:1 -f - "$programs" >/dev/null
rm -f "$cache/images/gangwatch.tar" # earlier versions of this script wrote one image for both
for one in "$agent agent" "$controller controller" "localhost/pause:1 pause"; do
    name=${one% *} archive=$cache/images/${one#* }.tar
    rm -f "$archive.new"
    buildah push $policy -q "$name" "docker-archive:$archive.new:$name"
    mv "$archive.new" "$archive"
    echo "$archive: $name, $(gzip -c "$archive" | wc -c | awk '{ printf "%.1f MB with gzip", $1 / 1e6 }')"
done
