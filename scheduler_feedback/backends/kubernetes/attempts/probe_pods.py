"""Probes: pods that measure a quarantined node, with all its GPUs, before another pod may use it. No I/O.

Probes are the only pods that the controller creates itself: in its own namespace and already bound, so that no
scheduler sees them and gangwatch's taint does not keep them away. The policy's probe command runs once; exit code 0 is
a pass. Probes have the annotations of every pod that we bind, so the next controller adopts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scheduler_feedback.backends.kubernetes.objects.constraints import OURS
from scheduler_feedback.backends.kubernetes.objects.objects import Pod
from scheduler_feedback.backends.kubernetes.objects.translate import ATTEMPT, RANK, SLOTS
from scheduler_feedback.core.actions import StartGang

PROBE = f"{OURS}probe"
"""Label of a probe's pod. Its value is the id of the probe's job."""


@dataclass(frozen=True, slots=True)
class Probes:
    """Template of probe pods."""

    image: str
    """Image that has the probe command."""

    namespace: str
    """Namespace of the controller, in which probes run."""

    scheduler: str

    def key_of(self, job_id: str, attempt: int) -> str:
        """Return 'NAMESPACE/NAME' of the probe's pod."""
        return f"{self.namespace}/{job_id}-{attempt}"

    def pod(self, action: StartGang, resource: str) -> dict[str, Any]:
        """Return the pod to create. resource: name of the node's accelerator resource."""
        spec = action.spec
        slots = [slot.slot for slot in action.placement]
        count = str(len(slots))
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.key_of(action.job_id, action.attempt).partition("/")[2],
                "namespace": self.namespace,
                "labels": {PROBE: action.job_id[:63].rstrip("-._")},
                "annotations": {ATTEMPT: str(action.attempt), RANK: "0", SLOTS: ",".join(map(str, slots))},
            },
            "spec": {
                "nodeName": action.placement[0].node,
                "schedulerName": self.scheduler,
                "restartPolicy": "Never",
                "activeDeadlineSeconds": max(int(spec.time_limit_seconds or 0), 1),
                "terminationGracePeriodSeconds": int(spec.grace_seconds),
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "tolerations": [{"operator": "Exists"}],
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [
                    {
                        "name": "probe",
                        "image": self.image,
                        "command": list(spec.command),
                        "resources": {"limits": {resource: count}},
                        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    }
                ],
            },
        }


def is_probe(pod: Pod) -> bool:
    return PROBE in (pod.metadata.labels or {})
