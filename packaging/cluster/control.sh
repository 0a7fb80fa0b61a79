#!/bin/bash
# The control plane, as process 1 of its own namespaces: the bridge that joins the nodes, etcd and Kubernetes' servers.
#   control.sh FOLDER MEMBERS     run by cluster.py, with PATH set; it ends when one of them cannot be kept running
# MEMBERS: number of etcd's members. All programs but the DNS run again when they end, as static pods do.
set -eu
folder=$1 members=$2
. "$(dirname "$0")/keep.sh"
hostname control
ip link set lo up
ip link add nodes type bridge
ip address add 10.213.0.1/24 dev nodes
ip address add 10.213.240.1/32 dev nodes # the service `kubernetes`: the API server itself answers, without a proxy
ip address add 10.213.240.10/32 dev nodes # the cluster's DNS, in the same way
ip link set nodes up
for index in 1 2 3 4 5; do ip route add "10.213.$index.0/24" via "10.213.0.$((10 + index))"; done # pods
cd "$folder/control"
touch ready
client() { echo "http://127.0.0.1:$((2379 + 10 * $1))"; }
peer() { echo "http://127.0.0.1:$((2380 + 10 * $1))"; }
peers=etcd-0=$(peer 0) clients=$(client 0)
for member in $(seq 1 $((members - 1))); do
    peers=$peers,etcd-$member=$(peer "$member") clients=$clients,$(client "$member")
done
for member in $(seq 0 $((members - 1))); do
    keep "etcd-$member.log" etcd --name="etcd-$member" --data-dir="etcd-$member" --initial-cluster="$peers" \
        --listen-client-urls="$(client "$member")" --advertise-client-urls="$(client "$member")" \
        --listen-peer-urls="$(peer "$member")" --initial-advertise-peer-urls="$(peer "$member")" \
        --unsafe-no-fsync --log-level=error &
done
# With one service address, an API server that binds all addresses is reachable at 10.213.0.1 and 10.213.240.1 alone: this
# network namespace has no others.
keep kube-apiserver.log kube-apiserver --etcd-servers="$clients" --secure-port=443 --advertise-address=10.213.0.1 \
    --tls-cert-file=server.crt --tls-private-key-file=server.key --client-ca-file=ca.crt \
    --kubelet-preferred-address-types=InternalIP --kubelet-certificate-authority=ca.crt --kubelet-client-certificate=admin.crt --kubelet-client-key=admin.key \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=accounts.key \
    --service-account-signing-key-file=accounts.key --service-cluster-ip-range=10.213.240.0/24 &
# Both end if the API server is not ready for them within 10 s, as on a busy machine.
keep kube-controller-manager.log kube-controller-manager --kubeconfig=kube-controller-manager.kubeconfig --leader-elect=false --bind-address=127.0.0.1 \
    --use-service-account-credentials --service-account-private-key-file=accounts.key --root-ca-file=ca.crt \
    --cluster-signing-cert-file=ca.crt --cluster-signing-key-file=ca.key --allocate-node-cidrs=false \
    --cert-dir=manager &
keep kube-scheduler.log kube-scheduler --kubeconfig=kube-scheduler.kubeconfig --leader-elect=false --bind-address=127.0.0.1 \
    --cert-dir=scheduler &
until [ -e dns ]; do sleep 0.1; done # cluster.py makes it when the API server is ready
coredns -conf Corefile >coredns.log 2>&1 &
wait -n
