"""Checks that a block has only names, kinds and labels of the metric catalogue, and no series twice."""

from __future__ import annotations

from agent.collectors.block import Block
from agent.schema.catalog import BY_NAME


def assert_catalogued(block: Block) -> None:
    series = set()
    for is_counter, columns in ((False, block.gauge_columns), (True, block.counter_columns)):
        for column in columns:
            metric = BY_NAME[column.metric]
            assert (metric.kind == "counter") is is_counter, column
            assert tuple(name for name, _ in column.labels) == metric.labels, column
            assert column.tier == 0, column
            assert (column.metric, column.labels) not in series, column
            series.add((column.metric, column.labels))


def gauge(block: Block, metric: str, **labels: str) -> float:
    """Return the value of a gauge; NaN if it is absent. Raise KeyError if the block has no such series."""
    wanted = tuple(sorted(labels.items()))
    for index, column in enumerate(block.gauge_columns):
        if (column.metric, column.labels) == (metric, wanted):
            return float(block.gauges[index])
    raise KeyError((metric, wanted))


def counter(block: Block, metric: str, **labels: str) -> int | None:
    """Return the value of a counter; None if it is absent. Raise KeyError if the block has no such series."""
    wanted = tuple(sorted(labels.items()))
    for index, column in enumerate(block.counter_columns):
        if (column.metric, column.labels) == (metric, wanted):
            return int(block.counters[index]) if block.counters_valid[index] else None
    raise KeyError((metric, wanted))
