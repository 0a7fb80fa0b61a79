"""Names of the pod labels that become labels of metrics."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent.schema.errors import ConfigError

MAX_NAMES = 16
"""Maximum number of pod labels on a series. Receivers limit the labels of a series, Mimir to 30 by default."""

_KEY = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
"""Syntax of the key of a label in Kubernetes: an optional prefix (a DNS subdomain) and a name of at most 63
characters."""


def metric_label(name: str) -> str:
    """Return the name of the metric label for a pod label, as kube-state-metrics names it: ``label_`` and the name."""
    return "label_" + re.sub(r"[^A-Za-z0-9_]", "_", name)


def check_pod_label_names(names: Sequence[str]) -> None:
    """Raise ConfigError for an invalid or repeated name, too many names, or two names with the same metric label."""
    if len(names) > MAX_NAMES:
        raise ConfigError(f"{len(names)} names: at most {MAX_NAMES} are allowed")
    taken: dict[str, str] = {}
    for name in names:
        if _KEY.fullmatch(name) is None:
            raise ConfigError(f"{name!r} is not the key of a Kubernetes label, such as 'team' or 'example.com/team'")
        other = taken.setdefault(metric_label(name), name)
        if names.count(name) > 1:
            raise ConfigError(f"{name!r} is listed twice")
        if other != name:
            raise ConfigError(f"{other!r} and {name!r} would both become {metric_label(name)}: remove one of them")
