"""Expressions: what PromQL of ours may name.

Every metric in it stands in the catalogue or is recorded by a rule, so that a name that was changed or misspelt fails
the build instead of showing an empty panel.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from agent.schema.catalog import BY_NAME
from agent.schema.errors import DashboardError

_NAME = re.compile(r"\b(?:[a-z_]+:)*gangwatch_[a-z0-9_]+(?::[a-z0-9_]+)*")
"""A metric of ours, or a recorded one of the form level:metric:operations."""

_RECORDED: dict[str, str] = {}

CLUSTER = 'cluster=~"$cluster"'
"""The matcher that every selector of a dashboard has: one Grafana shows many clusters."""

GANG = f'{CLUSTER}, gang=~"$gang"'


def names_of(expression: str) -> set[str]:
    """The metrics of ours that the expression reads. What stands in quotes is no metric."""
    return set(_NAME.findall(re.sub(r'"[^"]*"', '""', expression)))


def record(name: str, expression: str) -> None:
    """Let expressions name what a recording rule makes. Raises DashboardError where it stands twice."""
    if name in _RECORDED:
        raise DashboardError(f"{name} is recorded twice")
    _RECORDED[name] = checked(expression, f"rule {name}")


def checked(expression: str, where: str) -> str:
    """The expression on one line. Raises DashboardError where it names what nobody publishes or records."""
    for name in sorted(names_of(expression)):
        if name not in BY_NAME and name not in _RECORDED:
            raise DashboardError(f"{where}: {name} is neither in the catalogue of metrics nor recorded by a rule")
    return re.sub(r"\s+", " ", expression).strip()


def worst(count: int, expression: str) -> str:
    """Of the series of an instant vector, those that reached the highest values in the time that is shown.

    `topk` alone chooses anew at every instant, and so shows many more series than it is asked for.
    """
    inner, span = _spanned(expression)
    return f"{inner} and topk({count}, max_over_time({inner}{span} @ end()))"


def least(count: int, expression: str, only: str = "") -> str:
    """As `worst`, of the lowest values. only: a comparison, as "== 0"; no other values are shown."""
    inner, span = _spanned(expression)
    return f"{inner} {only} and bottomk({count}, min_over_time({inner}{span} @ end()))"


def _spanned(expression: str) -> tuple[str, str]:
    if _SELECTOR.fullmatch(expression):
        return expression, "[$__range]"
    return f"({expression})", "[$__range:$__interval]"


def busiest(count: int, counter: str, rate: Callable[[str], str] = str) -> str:
    """The rates of those series of a counter that have counted most in the time that is shown, if anything.

    They are chosen by one rate over all of it, which costs thousands of series little where `worst` would take the
    rate at every instant twice. rate: what is done with a rate first, as summing or joining it.
    """
    whole = rate(f"rate({counter}[$__range] @ end())")
    return f"{rate(f'rate({counter}[$__rate_interval])')} and topk({count}, {whole} > 0)"


def rose(selector: str, window: str) -> str:
    """Where a counter has risen within the window, or has begun in it.

    A counter by code or kind begins with what it counts first, and that `increase` does not see.
    """
    # "+ 0" takes the name off, as increase does: with it and without a series is two, and one after max_over_time.
    return f"(increase({selector}[{window}]) > 0 or ({selector} unless {selector} offset {window}) + 0)"


_SELECTOR = re.compile(r"[a-z0-9_:]+(?:\{[^{}]*\})?")
