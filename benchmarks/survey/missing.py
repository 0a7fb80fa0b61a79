"""Mechanisms of the survey that the product does not have. Each row states what is missing."""

from __future__ import annotations

from benchmarks.survey.replays import MURI
from benchmarks.survey.row import Row

WHOLE_GPUS = "the scheduler's slots are whole GPUs: jobs can't share one"
NO_DEADLINES = "no tenants with a latency objective"
PROPORTIONAL = "the speed of a gang is assumed to be proportional to its ranks"

MISSING: tuple[tuple[str, str, str, float | None, str, str], ...] = (
    ("Muri", "phase interleaving (Muri-L)", "average JCT on muri-1, ks", 1072.0, MURI, WHOLE_GPUS),
    ("Muri", "phase interleaving (Muri-S)", "average JCT on muri-1, ks", 867.7, MURI, WHOLE_GPUS),
    ("AntMan", "opportunistic jobs on leftovers", "average JCT on muri-1, ks", 5476.4, MURI, WHOLE_GPUS),
    ("Gandiva", "packing with undo, migration, time slicing", "utilisation gain", 0.26, "Xiao et al., OSDI'18",
     WHOLE_GPUS),
    ("MuxFlow", "online and training jobs share a GPU", "latency objective kept", None, "Zhao et al., 2023",
     NO_DEADLINES),
    ("Lyra", "loan of inference nodes", "JCT, times better", 1.48, "Li et al., EuroSys'23", NO_DEADLINES),
    ("MIGER", "MIG reconfiguration and placement", "throughput", None, "survey", "no MIG profiles in requests"),
    ("IADeep", "interference prediction for placement", "JCT gain", None, "survey", WHOLE_GPUS),
    ("SJF-BSBF", "sharing only where it pays", "average JCT", None, "survey", WHOLE_GPUS),
    ("SchedTune", "memory prediction", "jobs out of memory", None, "survey", "GPU memory is not requested"),
    ("Gandiva_fair", "ticket trading between users and types", "total gain", None, "Chaudhary et al., EuroSys'20",
     "quotas count slots of all types alike"),
    ("Pollux", "goodput-optimal size and batch", "average JCT", None, "Qiao et al., OSDI'21", PROPORTIONAL),
    ("Tenplex", "restart on another number of GPUs", "-", None, "Wagenländer et al., SOSP'24",
     "elastic gangs resize, but no contract for resharding"),
    ("Crux, CASSINI", "traffic-aware placement and time shifts", "utilisation gain", None, "survey",
     "gangs in simulation do not slow each other down"),
    ("PowerFlow", "energy budget and power caps", "JCT at equal energy", None, "survey", "no energy in the model"),
)  # fmt: skip
"""(system, mechanism, measure, published, source, reason)."""


def rows() -> list[Row]:
    """Return the rows of this module."""
    return [Row(*one[:5], reason=one[5]) for one in MISSING]
