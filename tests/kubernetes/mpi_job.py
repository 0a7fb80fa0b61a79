"""Objects of an MPIJob of Kubeflow whose launcher starts its ranks by `kubectl exec`, and a program for it.

The objects are those that the training operator makes of an MPIJob of kubeflow.org/v1: a ConfigMap with the host file
and the agent that Open MPI calls instead of rsh, a service account that may execute commands in the worker pods, worker
pods that wait, and a launcher without GPUs (https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/mpi/).
Open MPI is this machine's: the pods mount its /usr, because the cluster's images have none.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from tests.kubernetes.real_site import IMAGE, Site
from tests.needs import component

NAME = "mpi"
PACKAGES = "openmpi-bin libopenmpi-dev"
PROGRAM = r"""
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

int main(int count, char **words) {
    int rank, size, sum;
    char host[256];
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    gethostname(host, sizeof host);
    printf("rank %d of %d on %s: sum %d\n", rank, size, host, sum);
    return MPI_Finalize();
}
"""
AGENT = """#!/bin/sh
# Open MPI calls this with the name of a host, which is a pod, and a command.
pod=$1
shift
exec /usr/bin/kubectl exec "$pod" -- /bin/sh -c "$*"
"""
LAUNCH = """
for pod in $(cut -d ' ' -f 1 /etc/mpi/hostfile); do
    until kubectl exec "$pod" -- true; do sleep 0.5; done
done
exec mpirun.openmpi -np {ranks} /program/program
"""
# Open MPI reads its parameters from the environment. Names of pods have no addresses, so each daemon is started by the
# launcher itself and connects back to it.
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_plm_rsh_agent": "/etc/mpi/agent.sh",
    "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
    "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
    "OMPI_MCA_orte_keep_fqdn_hostnames": "1",
    "OMPI_MCA_btl": "tcp,self",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "HOME": "/tmp",
}
CORE, RBAC = "/api/v1/namespaces/default", "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
OBJECTS = (
    f"/apis/batch/v1/namespaces/default/jobs/{NAME}-launcher",
    f"{CORE}/configmaps/{NAME}",
    f"{CORE}/serviceaccounts/{NAME}",
    f"{RBAC}/roles/{NAME}",
    f"{RBAC}/rolebindings/{NAME}",
)


def compiled(folder: Path) -> Path:
    """Compile the program; return its folder, which the pods mount."""
    compiler = component("mpicc.openmpi", PACKAGES)
    (folder / "program.c").write_text(PROGRAM)
    subprocess.run([compiler, "-o", str(folder / "program"), str(folder / "program.c")], check=True)
    folder.chmod(0o755)
    return folder


def add(site: Site, workers: int, program: Path) -> None:
    """Create the gang: launcher and workers with one GPU each. program: folder that has it."""
    api, metadata = site.api, {"name": NAME}
    site.gangs.add_group(NAME, workers + 1)
    hosts = "".join(f"{NAME}-worker-{index} slots=1\n" for index in range(workers))
    api.create(f"{CORE}/configmaps", {"metadata": metadata, "data": {"hostfile": hosts, "agent.sh": AGENT}})
    api.create(f"{CORE}/serviceaccounts", {"metadata": metadata})
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]},
    ]
    api.create(f"{RBAC}/roles", {"metadata": metadata, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME}
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": "default"}
    api.create(f"{RBAC}/rolebindings", {"metadata": metadata, "roleRef": reference, "subjects": [subject]})
    template = _pod("launcher", 0, program, LAUNCH.format(ranks=workers))
    template["spec"]["serviceAccountName"] = NAME
    launcher = {"metadata": {"name": f"{NAME}-launcher"}, "spec": {"backoffLimit": 0, "template": template}}
    api.create("/apis/batch/v1/namespaces/default/jobs", launcher)
    for index in range(workers):
        worker = _pod("worker", 1, program, "exec sleep 86400", index)
        worker["metadata"]["name"] = f"{NAME}-worker-{index}"
        api.create(f"{CORE}/pods", worker)


def _pod(role: str, gpus: int, program: Path, script: str, index: int = 0) -> dict[str, Any]:
    """Return the body of a pod with the labels of the training operator."""
    labels = {
        "scheduling.x-k8s.io/pod-group": NAME,
        "training.kubeflow.org/job-name": NAME,
        "training.kubeflow.org/replica-type": role,
        "training.kubeflow.org/replica-index": str(index),
    }
    mounts = {"/usr": "usr", "/program": "program", "/etc/mpi": "config"}
    container: dict[str, Any] = {
        "name": "mpi",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "env": [{"name": name, "value": value} for name, value in ENVIRONMENT.items()],
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": name, "mountPath": path, "readOnly": True} for path, name in mounts.items()],
        "resources": {
            "requests": {"cpu": "10m", "memory": "32Mi"},
            "limits": {"nvidia.com/gpu": str(gpus)} if gpus else {},
        },
    }
    return {
        "metadata": {"labels": labels},
        "spec": {
            "schedulerName": "gangwatch",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "volumes": [
                {"name": "usr", "hostPath": {"path": "/usr"}},
                {"name": "program", "hostPath": {"path": str(program)}},
                {"name": "config", "configMap": {"name": NAME, "defaultMode": 0o755}},
            ],
        },
    }


def remove(site: Site) -> None:
    """Delete all objects of the gang."""
    for path in OBJECTS:
        site.api.delete(path, {"propagationPolicy": "Background", "apiVersion": "v1"})
    site.clear(NAME)
