"""Expositions of all scenarios by simulated second: scripted runs, and an agent on fake hardware."""

from __future__ import annotations

from tests.dashboards.live import Bodies
from tests.dashboards.scenarios import SCENARIOS, SECONDS, Scenario
from tests.dashboards.scripted import SCRAPE_SECONDS


def record(names: tuple[str, ...] = tuple(SCENARIOS)) -> tuple[dict[str, Bodies], dict[str, dict[str, str]]]:
    """Return (expositions by path, labels of each target) of these scenarios."""
    targets: dict[str, Bodies] = {}
    labels: dict[str, dict[str, str]] = {}
    for cluster in names:
        scenario = SCENARIOS[cluster]
        run = scenario.make()
        run.until(SECONDS)
        for target in sorted({name for scrape in run.scrapes for name in scrape}):
            bodies = [scrape.get(target) for scrape in run.scrapes]
            is_controller = target == "controller"
            path = f"{cluster}/{target}"
            targets[path] = _answers(bodies, scenario, is_controller)
            labels[path] = {"cluster": cluster, "job": "controller" if is_controller else "agent"}
            if not is_controller:
                labels[path]["node"] = target
    return targets, labels


def _answers(bodies: list[bytes | None], scenario: Scenario, is_controller: bool) -> Bodies:
    known = next(number for number, body in enumerate(bodies) if body is not None)

    def answer(now: float) -> bytes | None:
        if is_controller and scenario.down[0] <= now < scenario.down[1]:
            return None
        # Before its first response a target repeats that response, because Prometheus needs targets that exist.
        return bodies[min(max(int(now / SCRAPE_SECONDS), known), len(bodies) - 1)]

    return answer
