"""Published rules, each in its own file as its authors state it, on the same telemetry as ours.

All of them name ranks (or machines) and no causes. If a rule needs data that telemetry lacks (Greyhound's GEMM and P2P
tests, Minder's autoencoder), the closest available signal replaces it, and the file says so.
"""

from __future__ import annotations

from benchmarks.detection.baselines.bocd_verified import BocdVerified
from benchmarks.detection.baselines.dlrover import Dlrover
from benchmarks.detection.baselines.eroica_mad import EroicaMad
from benchmarks.detection.baselines.history import Panel, Rule
from benchmarks.detection.baselines.mean_2sigma import Mean2Sigma
from benchmarks.detection.baselines.nvrx import Nvrx
from benchmarks.detection.baselines.pairwise_distance import PairwiseDistance
from benchmarks.detection.baselines.sliding_window import SlidingWindow

BASELINES: tuple[type[Rule], ...] = (
    Nvrx,
    Dlrover,
    Mean2Sigma,
    SlidingWindow,
    BocdVerified,
    PairwiseDistance,
    EroicaMad,
)

NAMES = tuple(rule.name for rule in BASELINES)

__all__ = ["BASELINES", "NAMES", "Panel"]
