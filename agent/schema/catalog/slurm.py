"""Slurm: what the controller asks of it, changes in it, or would change."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

_SOURCE = "the Slurm backend"

SLURM: tuple[Metric, ...] = (
    Metric("gangwatch_slurm_requests_total", "counter", "Commands run that slurmctld had to answer.", "", (), _SOURCE),
    Metric("gangwatch_slurm_look_age_seconds", "gauge", "Time since the newest look at Slurm's nodes and jobs.",
           "seconds", (), _SOURCE),
    Metric("gangwatch_slurm_nodes_drained", "gauge", "Nodes that are drained by gangwatch.", "", (), _SOURCE),
    Metric("gangwatch_slurm_actions_total", "counter",
           "Changes made in Slurm, by what became of them: done, would (advise), withheld, failed.", "",
           ("action", "outcome"), _SOURCE),
    Metric("gangwatch_slurm_records_refused_total", "counter",
           "Records of jobs and nodes in Slurm's listings that could not be read, one a listing; the others are used.",
           "", ("kind",), _SOURCE),
    Metric("gangwatch_slurm_advice", "gauge", "What would be done now, were the mode act: 1 for each node or job.", "",
           ("action", "target"), _SOURCE),
)  # fmt: skip
