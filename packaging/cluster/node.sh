#!/bin/bash
# One node, as process 1 of its own namespaces: its folders and its network, then containerd and the kubelet.
#   node.sh FOLDER NAME INDEX      run by cluster.py, with PATH set; it ends when one of the two cannot be kept running
set -eu
folder=$1 name=$2 index=$3
own=$folder/$name
hostname "$name"

# /sys shows the interfaces of this network namespace; the control groups stay those of the machine.
mkdir -p "$own/groups"
mount --rbind /sys/fs/cgroup "$own/groups"
mount -t sysfs sysfs /sys
mount --rbind "$own/groups" /sys/fs/cgroup
umount -l "$own/groups"
for part in /var/lib /var/log /run; do
    mkdir -p "$own$part"
    mount --bind "$own$part" "$part"
done
# The kubelet sets these parameters of the kernel, which the machine shares with it. It finds them set.
for parameter in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=$own/sysctl-$(echo "${parameter%=*}" | tr / -)
    echo "${parameter#*=}" >"$file"
    mount --bind "$file" "/proc/sys/${parameter%=*}"
done

# Each start of a node is a boot: the kubelet reports this id, and not the machine's.
cat /proc/sys/kernel/random/uuid >"$own/boot-id"
mount --bind "$own/boot-id" /proc/sys/kernel/random/boot_id

# Mounts of pods propagate within the node, and not to the machine.
mount --make-rshared /

until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
ip link set lo up
ip address add "10.213.0.$((10 + index))/24" dev eth0
ip link set eth0 up
ip route add default via 10.213.0.1
# Until a pod has its address, packets to it leave by the default route. The sender must not learn that route: after a
# reboot it would keep it for five minutes.
for interface in all eth0; do echo 0 >"/proc/sys/net/ipv4/conf/$interface/send_redirects"; done
echo 1 >/proc/sys/net/ipv4/ip_forward
other=1
while [ "$other" -le 5 ]; do
    [ "$other" -eq "$index" ] || ip route add "10.213.$other.0/24" via "10.213.0.$((10 + other))"
    other=$((other + 1))
done

. "$(dirname "$0")/keep.sh"
mkdir -p /var/lib/kubelet /run/containerd
touch "$own/resolv.conf" # pods get the cluster's DNS alone, which has no names of other domains
cd "$own"
keep containerd.log containerd --config containerd.toml &
until [ -S /run/containerd/containerd.sock ]; do sleep 0.1; done
if [ ! -e imported ]; then # a node that starts again has its images
    for image in "$folder"/images/*.tar; do
        ctr -n k8s.io images import "$image" >>images.log 2>&1
    done
    touch imported
fi
keep kubelet.log kubelet --config=kubelet.yaml --kubeconfig=kubelet.kubeconfig --hostname-override="$name" \
    --node-ip="10.213.0.$((10 + index))" &
wait -n
