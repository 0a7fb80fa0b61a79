"""Metrics of the Slurm backend: commands, changes and advised changes."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

_SOURCE = "the Slurm backend"

SLURM: tuple[Metric, ...] = (
    Metric("gangwatch_slurm_requests_total", "counter", "Commands run that send a request to slurmctld.", "", (),
           _SOURCE),
    Metric("gangwatch_slurm_look_age_seconds", "gauge", "Time since Slurm's nodes and jobs were last read.",
           "seconds", (), _SOURCE),
    Metric("gangwatch_slurm_nodes_drained", "gauge", "Nodes drained by gangwatch.", "", (), _SOURCE),
    Metric("gangwatch_slurm_actions_total", "counter",
           "Changes to Slurm by outcome: done, would (mode advise), withheld, failed.", "",
           ("action", "outcome"), _SOURCE),
    Metric("gangwatch_slurm_records_refused_total", "counter",
           "Unreadable job and node records in Slurm's listings, counted once per listing. Other records are used.",
           "", ("kind",), _SOURCE),
    Metric("gangwatch_slurm_advice", "gauge", "1 for each node or job that gangwatch would change now in mode act.", "",
           ("action", "target"), _SOURCE),
)  # fmt: skip
