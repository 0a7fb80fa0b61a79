"""Collector of the free space of checkpoint folders, as a plug-in of gangwatch.

SITE_CHECKPOINT_FOLDERS lists the folders, separated by ':'.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class CheckpointSpace(Collector):
    """Collector of free bytes and free inodes. A folder that can't be read is left out."""

    def __init__(self) -> None:
        self._folders = [folder for folder in os.environ.get("SITE_CHECKPOINT_FOLDERS", "").split(":") if folder]

    def collect(self) -> Iterable[Metric]:
        """Return one family each for bytes and inodes, with a series for each folder."""
        free = GaugeMetricFamily(
            "site_checkpoint_free_bytes", "Free space for checkpoints.", labels=["folder"], unit="bytes"
        )
        inodes = GaugeMetricFamily("site_checkpoint_free_inodes", "Free inodes for checkpoints.", labels=["folder"])
        for folder in self._folders:
            try:
                facts = os.statvfs(folder)
            except OSError:
                continue
            free.add_metric([folder], facts.f_bavail * facts.f_frsize)
            inodes.add_metric([folder], facts.f_favail)
        return [free, inodes]
