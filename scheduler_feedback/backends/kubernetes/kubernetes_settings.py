"""Settings of the two Kubernetes backends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler_feedback.backends.kubernetes.api_server.client import Access
from scheduler_feedback.backends.kubernetes.attempts.probe_pods import Probes
from scheduler_feedback.backends.kubernetes.objects.other_schedulers import SETTLED_SECONDS
from scheduler_feedback.backends.kubernetes.objects.translate import SCHEDULER, TopologyLabels


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """Settings of the connection to a cluster, and of what gangwatch does in the cluster."""

    access: Access
    scheduler: str = SCHEDULER
    """schedulerName of the pods that gangwatch places."""
    labels: TopologyLabels = field(default_factory=TopologyLabels)
    may_act: Callable[[], bool] = lambda: True
    """Returns whether this process is the leader; called before each write. Any thread may call it."""
    missing_rights: Callable[[], str] = lambda: ""
    """Returns which rights in the cluster the leader lacks, as a sentence; '' if none. Any thread may call it."""
    rebuilds: bool = True
    """Whether to build the first state from the API's objects: another controller may have led since this folder was
    last used."""
    memory: tuple[str, str] | None = None
    """Namespace and name of the ConfigMap that stores the use of queues and run times; None stores nothing."""
    agents: str = ""
    """URL of an agent, with {} in place of its pod's address with dashes ('10-0-0-5'); '' if no agents are read."""
    evicts: bool = False
    """Whether the quarantine taint has the effect NoExecute, which evicts pods."""
    probes: Probes | None = None
    """Template of the pods that measure nodes; None if they cannot be measured."""
    upstream_groups: bool = False
    """Whether to schedule PodGroups of scheduling.k8s.io, too."""
    device_taints: bool = False
    """Whether the advisor writes DeviceTaintRules."""
    settled_seconds: float = SETTLED_SECONDS
    """Seconds for which a gang's pods must be unchanged before the advisor observes the gang."""
