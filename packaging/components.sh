#!/bin/sh
# Installs the real components that some tests run against. As root, on Debian 12 or newer.
#   prometheus    promtool and a scraping server
#   prometheus-alertmanager  the alert server, and amtool
#   python3-torch PyTorch with gloo, for the DistributedDataParallel tests
#   gcc           compiles the fake NVML at its real ABI
#   g++, python3-dev  compile what torch.compile generates (packaging/torch.sh)
#   iproute2      network namespaces and link speeds of the virtual nodes of benchmarks.reality
#   prometheus-node-exporter, ethtool  reference values for the agent's metrics of this machine
#   curl, openssl TLS requests, and certificates for them
#   systemd       systemd-analyze, which checks the units
#   man-db        man, which renders the manual pages
#   chromium      renders the live page
#   openmpi-bin, libopenmpi-dev, mpich, libmpich-dev, python3-mpi4py  MPI jobs, with both launchers
#   etcd-server   the store of the API server that packaging/kubernetes/build.sh builds
#   slurmctld, slurmd, slurm-client, munge  a real Slurm for the backend's tests and benchmarks
set -eu
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "make components: needs root on Debian (apt-get); install these yourself: prometheus prometheus-alertmanager prometheus-node-exporter ethtool python3-torch gcc g++ python3-dev iproute2 curl openssl systemd slurmctld slurmd slurm-client munge chromium etcd-server man-db openmpi-bin libopenmpi-dev mpich libmpich-dev python3-mpi4py" >&2
    exit 1
fi
missing=""
for package in prometheus prometheus-alertmanager prometheus-node-exporter ethtool python3-torch gcc g++ python3-dev iproute2 libc6-dev curl openssl systemd slurmctld slurmd slurm-client munge chromium etcd-server man-db openmpi-bin libopenmpi-dev mpich libmpich-dev python3-mpi4py; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
# Debian starts a service when it installs it. Prevent that: the tests start these themselves.
policy=/usr/sbin/policy-rc.d
created=""
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
    created=yes
fi
trap '[ -z "$created" ] || rm -f "$policy"' EXIT
apt-get update -q
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
