"""IADeep: join the job with the least predicted interference; predictions are fitted to the pairs measured so far.

Chen et al., "Interference-aware Multiplexing for Deep Learning in GPU Clusters: A Middleware Approach", SC'23. Its
predictor is a Gaussian process over co-located tasks. Here the logarithm of a speed is a sum of the job's sensitivity
and the other job's pressure (``interference_model``), because measurements are few.
"""

from __future__ import annotations

from scheduler_feedback.policies.sharing.case import Case, Chance, combined
from scheduler_feedback.policies.sharing.interference_model import predicted_speed


def chance(case: Case) -> Chance | None:
    """Return the predicted throughput of both together; None if it is below that of the larger one alone."""
    if case.others:
        return None
    guest, host = case.guest.spec, case.host.spec
    mine, theirs = predicted_speed(case.state, guest, host), predicted_speed(case.state, host, guest)
    together = combined(len(case.host.ranks), theirs, guest.ranks, mine)
    if together <= max(case.state.policy.separate_below, 1.0):
        return None
    return Chance(together, f"predicted {together:.2f}x together")
