"""Delays from a fault to the alert and to the dashboard, through a real Prometheus and Alertmanager.

python -m benchmarks.dashboard_delays --json

Runs the scripted faults of tests/dashboards: a straggler, an interference, a congested uplink, a faulty device, a
hang and a lost agent. Prints, in simulated seconds after the fault's begin, when the webhook was notified and, for a
slow rank, when the job's dashboard showed this rank a tenth slower than the median. Simulated time runs fifteen
times as fast as real time, so the resolution is one scrape interval of 15 s.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.dashboards.accelerated import SPEED
from tests.dashboards.live import Stage, staged
from tests.dashboards.recorded import record
from tests.dashboards.scenarios import LENGTH, ONSET

PLAYED = ("straggler", "interference", "congestion", "sick-device", "hang", "lost-agent")

SHOWN = 'rank:gangwatch_rank_own_seconds:mean2m{cluster="straggler", rank="9"} / on (cluster, gang) \
quantile by (cluster, gang) (0.5, rank:gangwatch_rank_own_seconds:mean2m{cluster="straggler"}) > 1.1'


def measure(folder: Path) -> dict[str, Any]:
    """Run the scripted faults and return the delays."""
    targets, labels = record(PLAYED)
    with staged(folder, targets) as stage:
        stage.place(labels)
        stage.wait_until(ONSET + LENGTH + 120.0)
        paged = {
            cluster: min(
                (
                    round(one.at - ONSET, 1)
                    for one in stage.notified
                    if one.labels.get("cluster") == cluster and one.status == "firing"
                ),
                default=None,
            )
            for cluster in PLAYED
        }
        return {"fault_to_page_seconds": paged, "fault_to_dashboard_seconds": {"straggler": _shown(stage)}}


def _shown(stage: Stage) -> float | None:
    span = {"start": stage.at(ONSET), "end": stage.at(ONSET + LENGTH), "step": "1s"}
    answers = stage.query("query_range", query=SHOWN, **span)
    times = [(float(at) - stage.began) * SPEED - ONSET for one in answers for at, _ in one["values"]]
    return round(min(times), 1) if times else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="accepted for compatibility: the output is always JSON")
    parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gangwatch-delays-") as folder:
        print(json.dumps(measure(Path(folder)), indent=2))


if __name__ == "__main__":
    main()
