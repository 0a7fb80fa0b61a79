#!/bin/bash
# The control plane, as process 1 of its own namespaces: the bridge that joins the nodes, etcd and Kubernetes' servers.
#   control.sh FOLDER     run by cluster.py, with PATH set; it ends when one of them ends
set -eu
folder=$1
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
etcd --data-dir=etcd --listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379 \
    --listen-peer-urls=http://127.0.0.1:2380 --unsafe-no-fsync --log-level=error >etcd.log 2>&1 &
# With one service address, an API server that binds all addresses is reachable at 10.213.0.1 and 10.213.240.1 alone: this
# network namespace has no others.
kube-apiserver --etcd-servers=http://127.0.0.1:2379 --secure-port=443 --advertise-address=10.213.0.1 \
    --tls-cert-file=server.crt --tls-private-key-file=server.key --client-ca-file=ca.crt \
    --kubelet-preferred-address-types=InternalIP --kubelet-certificate-authority=ca.crt --kubelet-client-certificate=admin.crt --kubelet-client-key=admin.key \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=accounts.key \
    --service-account-signing-key-file=accounts.key --service-cluster-ip-range=10.213.240.0/24 >kube-apiserver.log 2>&1 &
kube-controller-manager --kubeconfig=kube-controller-manager.kubeconfig --leader-elect=false --bind-address=127.0.0.1 \
    --use-service-account-credentials --service-account-private-key-file=accounts.key --root-ca-file=ca.crt \
    --cluster-signing-cert-file=ca.crt --cluster-signing-key-file=ca.key --allocate-node-cidrs=false \
    --cert-dir=manager >kube-controller-manager.log 2>&1 &
kube-scheduler --kubeconfig=kube-scheduler.kubeconfig --leader-elect=false --bind-address=127.0.0.1 \
    --cert-dir=scheduler >kube-scheduler.log 2>&1 &
until [ -e dns ]; do sleep 0.1; done # cluster.py makes it when the API server is ready
coredns -conf Corefile >coredns.log 2>&1 &
wait -n
