"""Error of learnt speeds on measured tables: python -m benchmarks.survey.learning [--json]

For each workload of Sia's artifact (``sia_data``), some configurations are drawn (GPU type, ranks, placement), the
model of the scheduler learns their measured speeds, and predicts the ratio of the speeds of every other configuration
and the first drawn one. Beside it is the assumption without learning: in proportion to the ranks, and to the given
speed of one GPU of the type. The parameters of the model come from Gavel's table, so no figure here was tuned.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from statistics import fmean

from benchmarks.survey import sia_data
from benchmarks.survey.shares import interval
from scheduler_feedback.policies.speeds.speed_model import Configuration, Measurement, SpeedModel

SEEDS = 10
KNOWN = (1, 2, 3, 5, 8)
"""Numbers of measured configurations."""

NOISE = 0.03
"""Standard deviation of a measurement's logarithm, as in the simulator."""


def _rates(workload: str) -> dict[Configuration, float]:
    """Return the measured speed of each configuration, up to 24 ranks, divided by the assumed one."""
    given = sia_data.given_speeds()[workload]
    found = {}
    for (name, gpu_type, level), (xs, ys) in sia_data.speeds().curves.items():
        if name == workload:
            for x, y in zip(xs, ys, strict=True):
                if (ranks := round(math.exp(x))) <= 24:
                    found[Configuration(gpu_type, ranks, level)] = y - math.log(ranks * given[gpu_type])
    return found


def errors(known: int, seed: int) -> tuple[float, float, float]:
    """Return (mean error of learnt ratios, of assumed ratios, share of learnt ones within two standard deviations).

    An error is that of the logarithm: 0.1 is about 10 %.
    """
    learnt, assumed, within = [], [], []
    for workload in sorted(sia_data.speeds().usual):
        chance = random.Random(f"{seed}/{workload}")
        rates = _rates(workload)
        drawn = chance.sample(sorted(rates), known)
        model = SpeedModel([Measurement(one, rates[one] + chance.gauss(0.0, NOISE), 1.0) for one in drawn])
        for one, rate in rates.items():
            if one not in drawn:
                mean, spread = model.log_ratio(one, drawn[0])
                true = rate - rates[drawn[0]]
                learnt.append(abs(mean - true))
                assumed.append(abs(true))
                within.append(abs(mean - true) <= 2 * spread)
    return fmean(learnt), fmean(assumed), fmean(within)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for known in KNOWN:
        found = [errors(known, seed) for seed in range(SEEDS)]
        learnt, assumed, within = (tuple(one[n] for one in found) for n in range(3))
        rows.append(
            {
                "measured": known,
                "learnt_error": round(fmean(learnt), 4),
                "learnt_interval": round(interval(learnt), 4),
                "assumed_error": round(fmean(assumed), 4),
                "assumed_interval": round(interval(assumed), 4),
                "within_two_deviations": round(fmean(within), 4),
            }
        )
    if arguments.json:
        print(json.dumps({"seeds": SEEDS, "rows": rows}, indent=2))
        return 0
    for row in rows:
        print(
            f"{row['measured']} measured: error {row['learnt_error']:.3f} +-{row['learnt_interval']:.3f}, "
            f"assumed {row['assumed_error']:.3f} +-{row['assumed_interval']:.3f}, "
            f"within two deviations {row['within_two_deviations']:.1%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
