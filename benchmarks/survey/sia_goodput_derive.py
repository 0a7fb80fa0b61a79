"""Derive the models of ``sia_goodput`` from the public artifact: python -m benchmarks.survey.sia_goodput_derive FOLDER

FOLDER is ``sia-simulator`` of siasosp23/artifacts. Written are, for each model, the batch sizes, the progress and the
gradient statistics of each epoch as measured by the authors, and the parameters of Pollux's published formula for the
time of a step (Qiao et al., OSDI'21, section 3.2), fitted here to the measured times of each GPU type:

    compute = a + b x local batch      network = c + d x max(ranks - 2, 0), with c, d for one node or for several
    step = (compute ^ g + network ^ g) ^ (1 / g)
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from benchmarks.survey.sia_data import RESTART_SECONDS
from benchmarks.survey.sia_goodput import MODELS_FILE, network_seconds
from scheduler_feedback.sim.speeds.sia_measurements import EPOCHS, TYPES, placements

RTX_DEEPSPEECH_MOST = 57
"""Largest local batch of deepspeech2 on rtx that fits its memory, as in the artifact."""


def _fitted(folder: Path, gpu_type: str) -> tuple[list[float], int, int]:
    """Return the parameters of a GPU type, and the least and largest measured local batch."""
    found = [
        (nodes, ranks, local, step, sync)
        for (nodes, ranks), all_times in placements(folder, gpu_type).items()
        for times in all_times
        for local, (step, sync) in times.items()
    ]
    nodes, ranks, local, step, sync = (np.array(column, float) for column in zip(*found, strict=True))

    def errors(values: Any) -> Any:
        compute = values[0] + values[1] * local
        total = (compute ** values[6] + network_seconds(values, nodes, ranks) ** values[6]) ** (1 / values[6])
        return np.concatenate([np.log(compute / (step - sync)), np.log(total / step)])

    low, high = [1e-8] * 6 + [1.0], [np.inf] * 6 + [10.0]
    fit = least_squares(errors, [0.1, 0.01] * 3 + [1.5], bounds=(low, high), loss="soft_l1", f_scale=0.1)
    alone = [int(size) for size, count in zip(local, ranks, strict=True) if count >= 1]
    return [float(f"{value:.5g}") for value in fit.x], min(alone), max(alone)


def main() -> int:
    source = Path(sys.argv[1])
    found: dict[str, Any] = {}
    for model in RESTART_SECONDS:
        folder = source / "traces" / model
        epochs = {}
        for path in folder.glob("validation-*.csv"):
            with path.open() as file:
                epochs[int(path.stem.split("-")[1])] = list(csv.DictReader(file))[: EPOCHS[model]]
        types = {}
        for gpu_type in TYPES:
            values, least, most = _fitted(folder, gpu_type)
            if model == "deepspeech2" and gpu_type == "rtx":
                most = RTX_DEEPSPEECH_MOST
            types[gpu_type] = {"step": values, "least_local": least, "most_local": most}
        found[model] = {
            "types": types,
            "progress": [
                round(min(float(rows[n]["progress"]) for rows in epochs.values()), 1) for n in range(EPOCHS[model])
            ],
            "gradients": {
                str(batch): [[float(f"{float(row[name]):.4g}") for name in ("grad_sqr", "grad_var")] for row in rows]
                for batch, rows in sorted(epochs.items())
            },
        }
    MODELS_FILE.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
