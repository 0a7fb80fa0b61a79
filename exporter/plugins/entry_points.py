"""Collectors of installed packages: the entry points of the group `gangwatch.collectors`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from itertools import islice
from typing import Any

from prometheus_client.metrics_core import Metric

GROUP = "gangwatch.collectors"

MOST_SERIES = 10_000
"""Maximum number of series that one plug-in may return: twice the number of series of a node with eight GPUs."""

MOST_FAMILIES = 2_000


class PluginError(Exception):
    """A plug-in that can't be loaded, or returned something that is not a list of families."""


def found_plugins() -> dict[str, EntryPoint]:
    """Return the installed entry points by name, sorted. A name that two packages use gets the package's name too."""
    found = list(entry_points(group=GROUP))
    often = Counter(one.name for one in found)
    named: dict[str, EntryPoint] = {}
    for one in found:
        package = one.dist.name if one.dist is not None else "?"
        named.setdefault(one.name if often[one.name] == 1 else f"{one.name} of {package}", one)
    return dict(sorted(named.items()))


class Plugin:
    """Collector of an installed package. It is loaded at its first collection, in the thread that collects."""

    def __init__(self, entry: EntryPoint) -> None:
        self._entry = entry
        self._collector: Any = None
        self._failure = ""

    def collect(self) -> list[object]:
        """Return what the collector returns, not checked.

        Raises PluginError if it can't be loaded or returns too much, and any exception of the collector.
        """
        if self._failure:
            raise PluginError(self._failure)
        if self._collector is None:
            try:
                self._collector = _made(self._entry.load())
            except BaseException as error:
                self._failure = f"can't load {self._entry.value}: {type(error).__name__}: {error}"[:500]
                raise PluginError(self._failure) from error
        return _limited(self._collector.collect())


def _made(loaded: Any) -> Any:
    """Return the collector of an entry point: the loaded object, or the result of calling it if it is a class or
    function."""
    collector = loaded if hasattr(loaded, "collect") and not isinstance(loaded, type) else loaded()
    collect: Callable[[], Iterable[Metric]] | None = getattr(collector, "collect", None)
    if not callable(collect):
        raise PluginError(f"{type(collector).__name__} is not a prometheus_client Collector: it has no method collect")
    return collector


def _limited(returned: Any) -> list[object]:
    """Return the families as a list. Raises PluginError if there are too many, so that an endless iterator is
    stopped."""
    try:
        families = list(islice(iter(returned), MOST_FAMILIES + 1))
    except TypeError as error:
        if hasattr(returned, "__iter__"):
            raise
        raise PluginError(f"collect() returned a {type(returned).__name__}, expected families: {error}") from None
    if len(families) > MOST_FAMILIES:
        raise PluginError(f"collect() returned more than {MOST_FAMILIES} families")
    if sum(len(getattr(family, "samples", ())) for family in families) > MOST_SERIES:
        raise PluginError(f"collect() returned more than {MOST_SERIES} series")
    return families
