"""Schedulers of gangs that the benchmark compares: their groups, their pods, and what each supports.

gangwatch             our controller; `gangwatch.io/required-topology` keeps a gang inside one spine
kube-scheduler        without gangs: it places each pod on its own, anywhere
kube-scheduler-gangs  Kubernetes 1.37's own gangs: PodGroup of scheduling.k8s.io/v1beta1 with a `gang` policy, and a
                      topology constraint. Feature gates GenericWorkload (beta, off by default) and
                      TopologyAwareWorkloadScheduling (alpha); pkg/features/kube_features.go of k8s.io/kubernetes
coscheduling          sigs.k8s.io/scheduler-plugins, plug-in Coscheduling, which has no topology: its gang is placed
                      anywhere. It reads the same PodGroup objects as gangwatch. The Go module proxy does not serve
                      this module, so it runs only if its program is given
kueue                 Kueue's groups of plain pods, which kube-scheduler places after their admission; a gang inside
                      one spine by `podset-required-topology`. Its Workloads have the conditions
kai                   KAI's scheduler and binder; a gang inside one spine by `topologyConstraint`
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.kubernetes.makers import group_body, pod_body

SPINE = "topology.gangwatch.io/spine"
GATES = "--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true"
UPSTREAM = "scheduling.k8s.io/v1beta1"
SERVER_OPTIONS = (GATES, f"--runtime-config={UPSTREAM}=true")
"""Options of the API server with which it serves Kubernetes' own PodGroups."""
UPSTREAM_GROUPS = f"/apis/{UPSTREAM}/namespaces/default/podgroups"
VOLCANO_API = "scheduling.volcano.sh/v1beta1"
VOLCANO_GROUPS = f"/apis/{VOLCANO_API}/namespaces/default/podgroups"
VOLCANO_QUEUE = f"/apis/{VOLCANO_API}/queues/default"
POOL = "benchmark.gangwatch.io/pool"
"""Label of all nodes: a Kueue flavor with a topology must select nodes by a label."""

KUEUE_API = "kueue.x-k8s.io/v1beta2"
KUEUE_WORKLOADS = f"/apis/{KUEUE_API}/namespaces/default/workloads"
KUEUE_QUEUE = "user-queue"
KAI_API = "scheduling.run.ai/v2alpha2"
KAI_GROUPS = f"/apis/{KAI_API}/namespaces/default/podgroups"
KAI_QUEUE = "default-queue"
OUR_GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"


@dataclass(frozen=True, slots=True)
class Peer:
    """A scheduler of the comparison."""

    name: str
    scheduler: str
    """Name by which pods select this scheduler."""
    group_condition: bool
    """Whether it sets a condition on the group of a gang that cannot run. If not, the pods' conditions count."""
    groups: str = OUR_GROUPS
    """API path of its groups, which also determines their form and that of pods."""

    @property
    def makes_groups(self) -> bool:
        """Whether the scheduler makes the groups itself, from the pods."""
        return self.groups == KUEUE_WORKLOADS

    def group(self, name: str, members: int, *, one_spine: bool = False) -> dict[str, Any]:
        """Return the body of a group. one_spine: whether all of its pods must be inside one spine."""
        if self.groups == KAI_GROUPS:
            kai: dict[str, Any] = {"minMember": members, "queue": KAI_QUEUE, "priorityClassName": "train"}
            if one_spine:
                kai["topologyConstraint"] = {"topology": "spines", "requiredTopologyLevel": SPINE}
            metadata = {"name": name, "labels": {"kai.scheduler/queue": KAI_QUEUE}}
            return {"apiVersion": KAI_API, "kind": "PodGroup", "metadata": metadata, "spec": kai}
        if self.groups == OUR_GROUPS:
            return group_body(name, members, **({"gangwatch.io/required-topology": "spine"} if one_spine else {}))
        if self.groups == VOLCANO_GROUPS:
            spec: dict[str, Any] = {"minMember": members, "queue": "default"}
            if one_spine:
                spec["networkTopology"] = {"mode": "hard", "highestTierAllowed": 1}
            return {"apiVersion": VOLCANO_API, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}
        spec = {"schedulingPolicy": {"gang": {"minCount": members}}}
        if one_spine:
            spec["schedulingConstraints"] = {"topology": [{"key": SPINE}]}
        return {"apiVersion": UPSTREAM, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}

    def pod(self, name: str, group: str, members: int, *, one_spine: bool = False, **spec: Any) -> dict[str, Any]:
        """Return the body of a pod with one GPU that belongs to this group of `members` pods."""
        if self.groups == OUR_GROUPS:
            return pod_body(name, 1, group, schedulerName=self.scheduler, **spec)
        if self.groups == UPSTREAM_GROUPS:
            spec["schedulingGroup"] = {"podGroupName": group}
        body = pod_body(name, 1, schedulerName=self.scheduler, **spec)
        if self.groups == KUEUE_WORKLOADS:
            body["metadata"]["labels"] = {
                "kueue.x-k8s.io/queue-name": KUEUE_QUEUE,
                "kueue.x-k8s.io/pod-group-name": group,
            }
            body["metadata"]["annotations"] = {"kueue.x-k8s.io/pod-group-total-count": str(members)}
            if one_spine:
                body["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"] = SPINE
        if self.groups == KAI_GROUPS:
            body["metadata"]["labels"] = {"kai.scheduler/queue": KAI_QUEUE}
            body["metadata"]["annotations"] = {"pod-group-name": group}
        if self.groups == VOLCANO_GROUPS:
            body["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": group}
        return body


def hyper_nodes(spines: Iterable[str]) -> list[dict[str, Any]]:
    """Return Volcano's topology: a HyperNode of tier 1 for each spine."""
    return [
        {
            "apiVersion": "topology.volcano.sh/v1alpha1",
            "kind": "HyperNode",
            "metadata": {"name": spine},
            "spec": {
                "tier": 1,
                "members": [{"type": "Node", "selector": {"labelMatch": {"matchLabels": {SPINE: spine}}}}],
            },
        }
        for spine in spines
    ]


OURS = Peer("gangwatch", "gangwatch", group_condition=True)
PLAIN = Peer("kube-scheduler", "default-scheduler", group_condition=False)
GANGS = Peer("kube-scheduler-gangs", "default-scheduler", group_condition=True, groups=UPSTREAM_GROUPS)
COSCHEDULING = Peer("coscheduling", "default-scheduler", group_condition=False)
KUEUE = Peer("kueue", "default-scheduler", group_condition=True, groups=KUEUE_WORKLOADS)
KAI = Peer("kai", "kai-scheduler", group_condition=False, groups=KAI_GROUPS)
VOLCANO = Peer("volcano", "volcano", group_condition=True, groups=VOLCANO_GROUPS)


def queue_sizes(gpus: int, most: int) -> list[int]:
    """Return the sizes of the gangs of a queue, in pods of one GPU: at most `most` gangs that fit together.

    gpus: number of GPUs of the cluster. Three quarters of them are used at most, so that every scheduler can place
    all gangs, in any order. Sizes alternate between 2, 4, 8 and 16.
    """
    sizes: list[int] = []
    while len(sizes) < most:
        size = (2, 4, 8, 16)[len(sizes) % 4]
        if sum(sizes) + size > gpus * 3 // 4:
            break
        sizes.append(size)
    return sizes
