"""Row of SchedTune: trainings whose GPU memory is predicted share GPUs, and none runs out of memory.

Albahar et al. (CCGrid'22) predict the memory of a training from its model and its GPU. Neither their traces nor their
predictor are public. Here, the measured memory of 1,000 trainings (``memory_derive``) is predicted from the numbers of
parameters and activations, by the parts that a training has:

    context + p x bytes of the parameters (with gradients and optimizer) + a x bytes of all activations of a batch

Other data was looked for: Alibaba's PAI 2020 trace has the largest memory of each worker (pai_sensor_table), but its
repository only points to the file; AcmeTrace has distributions of whole clusters; the trainings of transformers and
convolutional networks of the same repository were not available here.

A prediction gets a margin: the largest error of the trainings from which it was learnt, relative to the prediction. The
first half of a random order is learnt, the second half is placed on GPUs by first fit, in ten orders.
"""

from __future__ import annotations

import random
from statistics import fmean
from typing import Any

import numpy as np
from scipy.optimize import nnls

from benchmarks.survey import learnt_memory
from benchmarks.survey.measured_memory import GPU_MIB, measured
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import SEEDS, interval


def predicted(learnt: list[int], others: list[int]) -> tuple[Any, float]:
    """Return the predicted memory of the other trainings in MiB, and the margin as a factor."""
    parts, mib = measured()
    weights, _ = nnls(parts[learnt] / mib[learnt, None], np.ones(len(learnt)))
    return parts[others] @ weights, float(max(mib[learnt] / (parts[learnt] @ weights)))


def placed(needed: Any, used: Any) -> tuple[int, float]:
    """Place trainings in their order on the first GPU with room for what they need.

    Return how many of them are on a GPU whose memory they exceed together, and the used share of the GPUs' memory.
    """
    free: list[float] = []
    jobs: list[list[float]] = []
    for need, use in zip(needed, used, strict=True):
        number = next((n for n, left in enumerate(free) if left >= need), len(free))
        if number == len(free):
            free.append(GPU_MIB)
            jobs.append([])
        free[number] -= need
        jobs[number].append(use)
    failed = sum(len(one) for one in jobs if sum(one) > GPU_MIB)
    return failed, float(sum(used)) / (GPU_MIB * len(free))


def _measured() -> Outcome:
    _, mib = measured()
    failed, used, bare, known, errors = [], [], [], [], []
    for seed in SEEDS:
        order = list(range(len(mib)))
        random.Random(f"memory {seed}").shuffle(order)
        half = len(order) // 2
        found, margin = predicted(order[:half], order[half:])
        actual = mib[order[half:]]
        failures, share = placed(found * margin, actual)
        failed.append(failures / len(actual) * 100)
        used.append(share)
        bare.append(placed(found, actual)[0] / len(actual) * 100)
        known.append(placed(actual, actual)[1])
        errors.append(float(np.mean(np.abs(found / actual - 1))))
    reason = (
        f"a study of unseen models; mean error {fmean(errors):.2%}; {fmean(used):.1%} "
        f"+-{interval(tuple(used)) * 100:.1f} of the memory used, {fmean(known):.1%} if all of it were known; without "
        f"the margin {fmean(bare):.1f} % out of memory; multilayer perceptrons only, see the module for other data"
    )
    return Outcome(None, round(fmean(failed), 3), reason)


def rows() -> list[Row]:
    """Return the rows of this module."""
    measure = "trainings out of memory, %, 500 held-out ones on GPUs of 40 GiB, ten seeds"
    ours = f"jobs out of memory, %, {learnt_memory.JOBS} recurring jobs on {learnt_memory.GPUS} GPUs of 40 GiB"
    source = "Albahar et al., CCGrid'22 (100 % avoided)"
    return [
        Row("SchedTune", "memory prediction", measure, 0.0, source, _measured),
        Row("SchedTune", "memory learnt by the scheduler", ours, 0.0, source, learnt_memory.outcome),
    ]
