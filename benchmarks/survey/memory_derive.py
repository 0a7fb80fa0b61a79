"""Derive ``data/training-memory.csv``: python -m benchmarks.survey.memory_derive FILE

FILE is ``Datasets/MLP/mlp_data_step2.csv`` of itu-rad/GPUMemNet (f01eb05): 3,000 trainings of multilayer perceptrons,
each measured on one GPU for a minute. The repository states no licence; the derived file has measured facts only: every
third row with its batch size, activations of one sample, parameters and largest memory.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from benchmarks.survey.measured_memory import MEMORY_FILE

EVERY = 3


def main() -> int:
    csv.field_size_limit(1 << 30)
    with Path(sys.argv[1]).open() as source, MEMORY_FILE.open("w") as file:
        print("batch,activations,parameters,mib", file=file)
        for row in list(csv.DictReader(source))[::EVERY]:
            names = ("Batch Size", "Total Activations", "Total Parameters", "Max GPU Memory (MiB)")
            print(",".join(str(round(float(row[name]))) for name in names), file=file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
