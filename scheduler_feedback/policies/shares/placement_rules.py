"""Rules that score a node for a request, and choose the GPUs there. The node with the highest score is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from scheduler_feedback.policies.shares.fragmentation import Fragmentation
from scheduler_feedback.policies.shares.gpu_room import Request, Room, gpu_choices, taken

Rule = Callable[[Room, Request], tuple[float, tuple[int, ...]] | None]
"""Returns (score, numbers of the GPUs to use), or None if the request does not fit on the node."""

LARGEST_CPU_MILLI, LARGEST_GPU_MILLI = 128_000, 8_000
"""Largest node of the published runs of best fit: its processors and GPUs have the same weight (MaxSpecCpu, MaxSpecGpu
of hkust-adsl/kubernetes-scheduler-simulator)."""


STEPS = 100
"""Number of different scores of `least_fragmentation`, as in the published runs (a score of kube-scheduler is a whole
number from 0 to 100). Without rounding, more GPUs remain unallocated."""

SCALE_MILLI = 1000.0
"""Change of fragmentation, in thousandths of a GPU, at which the sigmoid of the published score is 0.73."""


def best_fit(room: Room, request: Request) -> tuple[float, tuple[int, ...]] | None:
    """Score a node by the processors and GPUs that would remain free: less is better. A share uses the fullest GPU."""
    choices = gpu_choices(room, request)
    if not choices:
        return None
    return -_left(room, request), min(choices, key=lambda gpus: sum(room.gpus[number] for number in gpus))


def _left(room: Room, request: Request) -> float:
    """Return how much of the largest node would remain free, 0 to 1."""
    left_gpu = (room.total_milli - request.total_milli) / LARGEST_GPU_MILLI
    left_cpu = (room.cpu_milli - request.cpu_milli) / LARGEST_CPU_MILLI
    return (left_gpu + left_cpu) / 2


def least_fragmentation(workload: Mapping[Request, float], fit: bool = True, rounded: bool = True) -> Rule:
    """Return the rule of fragmentation gradient descent (FGD): the node and GPU where fragmentation grows least.

    workload: share of each typical request. fit: of nodes with equal scores, the one that best fits goes first; without
    it, the first node does, as in the published runs. rounded: whether scores are one of STEPS, as in these runs.
    Source: Weng et al., USENIX ATC'23, section 5.
    """
    fragmentation = Fragmentation(workload)

    def rule(room: Room, request: Request) -> tuple[float, tuple[int, ...]] | None:
        best: tuple[float, tuple[int, ...]] | None = None
        for gpus in gpu_choices(room, request):
            less = fragmentation.milli(room) - fragmentation.milli(taken(room, request, gpus))
            score = STEPS / (1 + math.exp(-less / SCALE_MILLI))
            score = math.floor(score) if rounded else score
            if best is None or score > best[0]:
                best = score, gpus
        if best is None or not fit:
            return best
        return best[0] - min(_left(room, request), 1.0) / 2, best[1]

    return rule
