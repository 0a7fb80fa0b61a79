"""Rules and queries for a Prometheus in which one second is SPEED seconds of the simulated world.

Windows, `for` and Alertmanager's waits are divided by SPEED. `rate` counts events per second of the real clock, so its
result is divided too. `increase` counts events in the window and needs no change. Timestamps (the expiry of
certificates) are compared with the real clock, so they need none either.
"""

from __future__ import annotations

import re
from typing import Any

SPEED = 15.0
"""One scrape per second represents the provisioned scrape every 15 s."""

MOST_WAIT_SECONDS = 60.0
"""Longest `for` in the world's seconds, which limits the run's length; promtool tests the real values."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RATE = re.compile(r"\brate\(([^()]*\[[0-9]+[smhd]\])\)")
_RANGE = re.compile(r"(?:(?<=\[)|(?<=offset ))([0-9]+)([smhd])\b")


def seconds_of(duration: str) -> float:
    """Return the seconds of a Prometheus duration, such as "5m"."""
    return float(duration[:-1]) * _UNITS[duration[-1]]


def duration_of(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms" if seconds else "0s"


def expression(text: str) -> str:
    """Return the expression for the accelerated clock."""
    text = _RATE.sub(rf"(rate(\1) / {SPEED:g})", text)
    return _RANGE.sub(lambda found: duration_of(float(found[1]) * _UNITS[found[2]] / SPEED), text)


def rules(document: dict[str, Any]) -> dict[str, Any]:
    """Return the rule groups for the accelerated clock."""
    groups = []
    for group in document["groups"]:
        made = []
        for rule in group["rules"]:
            rule = rule | {"expr": expression(rule["expr"])}
            for key, most in (("for", MOST_WAIT_SECONDS), ("keep_firing_for", MOST_WAIT_SECONDS)):
                if key in rule:
                    rule[key] = duration_of(min(seconds_of(rule[key]), most) / SPEED)
            made.append(rule)
        groups.append(group | {"rules": made})
    return {"groups": groups}


def alertmanager(document: dict[str, Any]) -> dict[str, Any]:
    """Return Alertmanager's routes for the accelerated clock."""

    def route(one: dict[str, Any]) -> dict[str, Any]:
        made = dict(one)
        if "group_wait" in made:
            made["group_wait"] = duration_of(seconds_of(made["group_wait"]) / SPEED)
        if "group_interval" in made:  # even shorter: resolved alerts must arrive during the run
            made["group_interval"] = duration_of(seconds_of(made["group_interval"]) / SPEED / 4)
        if "routes" in made:
            made["routes"] = [route(child) for child in made["routes"]]
        return made

    return document | {"route": route(document["route"])}
