"""Functions that make and check PromQL expressions.

Every metric in an expression must be in the metric catalogue or recorded by a rule. Otherwise, for example if a name is
misspelt, the build fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from agent.schema.catalog import BY_NAME
from agent.schema.errors import DashboardError

_NAME = re.compile(r"\b(?:[a-z_]+:)*gangwatch_[a-z0-9_]+(?::[a-z0-9_]+)*")
"""Pattern of the name of a gangwatch metric, or of a recording rule (level:metric:operations)."""

_RECORDED: dict[str, str] = {}

CLUSTER = 'cluster=~"$cluster"'
"""Label matcher that selects the displayed cluster. Every selector needs it, because one Grafana shows many
clusters."""

GANG = f'{CLUSTER}, gang=~"$gang"'


def names_of(expression: str) -> set[str]:
    """Return the names of the gangwatch metrics that the expression reads. Names in quotes do not count."""
    return set(_NAME.findall(re.sub(r'"[^"]*"', '""', expression)))


def record(name: str, expression: str) -> None:
    """Register the name of a recording rule. Raises DashboardError if it is registered already."""
    if name in _RECORDED:
        raise DashboardError(f"{name} is recorded twice")
    _RECORDED[name] = checked(expression, f"rule {name}")


def checked(expression: str, where: str) -> str:
    """Return the expression without line breaks. Raises DashboardError if it reads an unknown metric."""
    for name in sorted(names_of(expression)):
        if name not in BY_NAME and name not in _RECORDED:
            raise DashboardError(f"{where}: {name} is neither in the catalogue of metrics nor recorded by a rule")
    return re.sub(r"\s+", " ", expression).strip()


def worst(count: int, expression: str) -> str:
    """Return an expression for the `count` series with the highest values in the displayed time range.

    `topk` alone would select other series at each instant, so that a panel shows more than `count` series.
    """
    inner, span = _spanned(expression)
    return f"{inner} and topk({count}, max_over_time({inner}{span} @ end()))"


def least(count: int, expression: str, only: str = "") -> str:
    """Return an expression for the `count` series with the lowest values in the displayed time range.

    only: condition for values to be displayed, such as "== 0"; '' for none.
    """
    inner, span = _spanned(expression)
    return f"{inner} {only} and bottomk({count}, min_over_time({inner}{span} @ end()))"


def _spanned(expression: str) -> tuple[str, str]:
    if _SELECTOR.fullmatch(expression):
        return expression, "[$__range]"
    return f"({expression})", "[$__range:$__interval]"


def busiest(count: int, counter: str, rate: Callable[[str], str] = str) -> str:
    """Return an expression for the rates of the `count` series of a counter that increase most in the displayed time.

    rate: function that receives the expression of a rate and returns the expression to display, for example a sum of
    rates. This is cheaper than `worst`, which computes the rate at every instant twice.
    """
    whole = rate(f"rate({counter}[$__range] @ end())")
    return f"{rate(f'rate({counter}[$__rate_interval])')} and topk({count}, {whole} > 0)"


def rose(selector: str, window: str) -> str:
    """Return an expression for the counters that were increased or created within the window.

    Some counters, such as those with an error code as label, are created at the first event, which `increase` does
    not count.
    """
    # "+ 0" removes the name, as `increase` does. Otherwise one series would appear twice, with and without a name.
    return f"(increase({selector}[{window}]) > 0 or ({selector} unless {selector} offset {window}) + 0)"


_SELECTOR = re.compile(r"[a-z0-9_:]+(?:\{[^{}]*\})?")
