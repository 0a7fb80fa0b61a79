"""The file that selects published metrics, in the CSV format of dcgm-exporter.

Each line has three fields: name, Prometheus type, help text. Lines that start with '#' are comments. Source:
https://github.com/NVIDIA/dcgm-exporter#changing-metrics
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path

from agent.schema.catalog import BY_NAME
from agent.schema.errors import ConfigError

_MOST_BYTES = 1 << 20
_TYPES = ("counter", "gauge", "histogram", "summary", "label")
_PREFIXES = {"DCGM_": "dcgm", "node_": "node_exporter", "rdma_": "rdma_exporter"}
"""Name of the other exporter (a value of the setting `compatibility`), by the prefix of its metric names."""


def read_metrics_file(path: Path) -> dict[str, str]:
    """Return the help texts by name of the selected metrics; '' for a metric that keeps its own text.

    Lines of type 'label' are ignored. Names of other exporters are not checked: they may belong to a device that this
    machine does not have.

    Raises ConfigError with the file and the line.
    """
    try:
        data = path.read_bytes()
        if len(data) > _MOST_BYTES:
            raise ConfigError(f"{path}: larger than {_MOST_BYTES} bytes")
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error}") from None
    selected: dict[str, str] = {}
    for number, fields in _rows(path, text):
        where = f"{path}:{number}"
        if len(fields) != 3:
            raise ConfigError(
                f"{where}: {len(fields)} fields; write NAME, TYPE, HELP, and put a help text with commas in quotes"
            )
        name, kind, help_text = fields
        if kind not in _TYPES:
            raise ConfigError(f"{where}: {name}: type {kind!r} is not one of {', '.join(_TYPES)}")
        if name in selected:
            raise ConfigError(f"{where}: {name}: a second time; remove one of the lines")
        if name not in BY_NAME and not name.startswith(tuple(_PREFIXES)):
            near = difflib.get_close_matches(name, BY_NAME, n=1)
            hint = f"did you mean {near[0]}?" if near else "docs/reference/metrics.md lists the names"
            raise ConfigError(f"{where}: {name}: unknown metric: {hint}")
        if kind != "label":
            selected[name] = help_text
    if not selected:
        raise ConfigError(f"{path}: selects no metric")
    return selected


def compatibility_of(selected: Mapping[str, str]) -> list[str]:
    """Return the exporters, such as DCGM, whose names are among the selected names."""
    return [exporter for prefix, exporter in _PREFIXES.items() if any(name.startswith(prefix) for name in selected)]


def _rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and stripped fields of each line that is not empty or a comment."""
    for number, whole in enumerate(text.split("\n"), 1):
        line = whole.removesuffix("\r")
        if line.lstrip().startswith("#") or not line.strip(" \t,"):
            continue
        try:
            (fields,) = csv.reader([line], skipinitialspace=True, strict=True)
        except (csv.Error, ValueError) as error:
            raise ConfigError(f"{path}:{number}: not CSV: {error}") from None
        yield number, [field.strip() for field in fields]
