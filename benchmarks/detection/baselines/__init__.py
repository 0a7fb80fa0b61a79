"""Published rules, which judge the same telemetry as our detectors. Each file contains one rule.

They name ranks or machines, but no causes. If a rule needs data that telemetry lacks (Greyhound's GEMM and P2P
tests, Minder's autoencoder), the file describes the replacement.
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
