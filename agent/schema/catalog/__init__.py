"""The metric catalogue: the only place where gangwatch declares its published series.

Exposition, frames, dashboards, rules and the reference page take names, units and help texts from this table. The test
of a collector fails if the collector emits a name that is not in the table.

Published units are Prometheus base units. Counters are integers internally, in the unit given by ``integer_unit``, and
are multiplied by ``scale`` once, on output: nanoseconds x 1e-9 are seconds.

To add a family of metrics, add a file and a line in METRICS.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.schema.catalog.agent import AGENT
from agent.schema.catalog.attribution import ATTRIBUTION
from agent.schema.catalog.exporter import EXPORTER
from agent.schema.catalog.feedback import FEEDBACK
from agent.schema.catalog.gpu import GPU
from agent.schema.catalog.host import HOST
from agent.schema.catalog.kernel_log import KERNEL_LOG
from agent.schema.catalog.metric import Kind, Metric
from agent.schema.catalog.network import NETWORK
from agent.schema.catalog.nvlink import NVLINK
from agent.schema.catalog.pcie import PCIE
from agent.schema.catalog.process import PROCESS
from agent.schema.catalog.rdma import RDMA
from agent.schema.catalog.renamed import RENAMED, Renamed
from agent.schema.catalog.serving import SERVING
from agent.schema.catalog.slurm import SLURM
from agent.schema.catalog.step import STEP
from agent.schema.catalog.topology import TOPOLOGY
from agent.schema.catalog.xid import XID

METRICS: tuple[Metric, ...] = (
    *AGENT,
    *ATTRIBUTION,
    *EXPORTER,
    *HOST,
    *PROCESS,
    *STEP,
    *GPU,
    *NVLINK,
    *XID,
    *RDMA,
    *NETWORK,
    *PCIE,
    *TOPOLOGY,
    *KERNEL_LOG,
    *FEEDBACK,
    *SERVING,
    *SLURM,
)


def index(metrics: Iterable[Metric] = METRICS) -> dict[str, Metric]:
    """Return a dictionary of the metrics by name. Raise ValueError if two metrics have the same name."""
    table: dict[str, Metric] = {}
    for metric in metrics:
        if metric.name in table:
            raise ValueError(f"{metric.name} is declared twice in the catalogue")
        table[metric.name] = metric
    return table


BY_NAME: dict[str, Metric] = index()

__all__ = [
    "AGENT",
    "BY_NAME",
    "EXPORTER",
    "FEEDBACK",
    "GPU",
    "HOST",
    "METRICS",
    "NVLINK",
    "PROCESS",
    "RDMA",
    "RENAMED",
    "STEP",
    "XID",
    "Kind",
    "Metric",
    "Renamed",
]
