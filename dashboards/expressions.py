"""Checks and building blocks of PromQL expressions.

Every metric in an expression must be in the catalogue or recorded by a rule. A renamed or misspelt metric therefore
fails the build instead of leaving a panel empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from agent.schema.catalog import BY_NAME
from agent.schema.errors import DashboardError

_NAME = re.compile(r"\b(?:[a-z_]+:)*gangwatch_[a-z0-9_]+(?::[a-z0-9_]+)*")
"""The name of a gangwatch metric, or of a recorded one with the form level:metric:operations."""

_RECORDED: dict[str, str] = {}

CLUSTER = 'cluster=~"$cluster"'
"""Label matcher in every selector of a dashboard, because one Grafana shows many clusters."""

GANG = f'{CLUSTER}, gang=~"$gang"'


def names_of(expression: str) -> set[str]:
    """Return the gangwatch metrics that the expression reads, without names in quotes."""
    return set(_NAME.findall(re.sub(r'"[^"]*"', '""', expression)))


def record(name: str, expression: str) -> None:
    """Register the name of a recording rule. Raises DashboardError if it is registered already."""
    if name in _RECORDED:
        raise DashboardError(f"{name} is recorded twice")
    _RECORDED[name] = checked(expression, f"rule {name}")


def checked(expression: str, where: str) -> str:
    """Return the expression on one line. Raises DashboardError if it reads an unknown metric."""
    for name in sorted(names_of(expression)):
        if name not in BY_NAME and name not in _RECORDED:
            raise DashboardError(f"{where}: {name} is neither in the catalogue of metrics nor recorded by a rule")
    return re.sub(r"\s+", " ", expression).strip()


def worst(count: int, expression: str) -> str:
    """Select the series of an instant vector with the highest values in the displayed time range.

    `topk` alone selects again at every instant, and so shows many more series than requested.
    """
    inner, span = _spanned(expression)
    return f"{inner} and topk({count}, max_over_time({inner}{span} @ end()))"


def least(count: int, expression: str, only: str = "") -> str:
    """Select the series with the lowest values, as `worst` does.

    only: comparison that shown values satisfy, such as "== 0".
    """
    inner, span = _spanned(expression)
    return f"{inner} {only} and bottomk({count}, min_over_time({inner}{span} @ end()))"


def _spanned(expression: str) -> tuple[str, str]:
    if _SELECTOR.fullmatch(expression):
        return expression, "[$__range]"
    return f"({expression})", "[$__range:$__interval]"


def busiest(count: int, counter: str, rate: Callable[[str], str] = str) -> str:
    """Select the rates of the series of a counter that have increased most in the displayed time range.

    The selection uses one rate over the whole range. That is cheap for thousands of series, where `worst` would compute
    the rate at every instant twice. rate: applied to each rate first, for example a sum or a join.
    """
    whole = rate(f"rate({counter}[$__range] @ end())")
    return f"{rate(f'rate({counter}[$__rate_interval])')} and topk({count}, {whole} > 0)"


def rose(selector: str, window: str) -> str:
    """Select counters that have increased within the window, or have been created in it.

    A counter by code or kind is created with its first count, and `increase` does not include that count.
    """
    # "+ 0" removes the name, as `increase` does. Otherwise one series would appear twice, with and without a name.
    return f"(increase({selector}[{window}]) > 0 or ({selector} unless {selector} offset {window}) + 0)"


_SELECTOR = re.compile(r"[a-z0-9_:]+(?:\{[^{}]*\})?")
