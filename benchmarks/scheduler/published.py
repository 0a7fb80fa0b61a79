"""Published figures of other schedulers on other machines, for comparison by order of magnitude."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """One figure that another project published. source: address of the publication."""

    engine: str
    setup: str
    figure: str
    source: str


PUBLISHED = (
    Published(
        "kube-scheduler (upstream)",
        "5,000 nodes, 1,000 / 2,000 / 3,000 gangs of 3 pods",
        "3.7 / 5.0 / 5.7 ms a gang",
        "kubernetes/kubernetes test/integration/scheduler_perf, gang scheduling workloads",
    ),
    Published(
        "KAI-Scheduler 0.20",
        "500 nodes: 4,000 jobs of one GPU; a topology gang of 512 pods; a gang of 10 that can't run",
        "397.8 s (10 jobs a second); 48.7 s; 249.5 s until it is declared so",
        "NVIDIA/KAI-Scheduler, scale tests",
    ),
    Published(
        "Kueue 0.20-dev",
        "15,000 workloads in 30 queues",
        "351 s, 43 admissions a second",
        "kubernetes-sigs/kueue test/performance/scheduler",
    ),
    Published(
        "Slurm 22.05.8",
        "128 nodes, 945 pending gangs of 4 nodes behind a reservation of 128",
        "0.33 s a backfill cycle, 0.35 ms a gang",
        "sdiag of Debian's slurmctld on two cores, measured for this project",
    ),
)
