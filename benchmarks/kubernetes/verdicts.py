"""``python -m benchmarks.kubernetes.verdicts KUBECONFIG FOLDER``: a controller that reads verdicts from its input.

Each input line has node names. Each node gets a verdict that it is broken, confirmed by an operator, so that limits
on quarantines do not apply. All other parts are the product's.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from scheduler_feedback.backends.kubernetes.api_server.kubeconfig import from_kubeconfig
from scheduler_feedback.backends.kubernetes.kubernetes_backend import KubernetesBackend
from scheduler_feedback.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scheduler_feedback.controller.controller import Controller
from scheduler_feedback.controller.controller_settings import ControllerSettings
from scheduler_feedback.core.events import Event, VerdictJudged
from scheduler_feedback.core.state import Policy
from scheduler_feedback.core.verdict import Cause, Kind, Verdict


def broken(node: str) -> list[Event]:
    """Return a verdict that the node is broken, and an operator's confirmation of it."""
    now_ns = time.time_ns()
    verdict = Verdict(
        f"benchmark-{node}", Kind.HEALTH, "", 0, -1, node, Cause.XID, 0.99, 1.0, 0.0, 0.0, now_ns, now_ns, level="node"
    )
    return [verdict, VerdictJudged(verdict.verdict_id, True, "benchmark")]


def main(kubeconfig: Path, folder: Path) -> None:
    policy = Policy(probe_command=())
    backend = KubernetesBackend(folder, KubernetesSettings(from_kubeconfig(kubeconfig)))
    with Controller(folder, backend, policy, ControllerSettings(detectors=())) as controller:
        print("ready", flush=True)
        for line in sys.stdin:
            controller.cycle.report([event for node in line.split() for event in broken(node)])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
