"""IADeep: join the job with the least predicted interference; predictions are fitted to the pairs measured so far.

Chen et al., "Interference-aware Multiplexing for Deep Learning in GPU Clusters: A Middleware Approach", SC'23. Its
predictor is a Gaussian process over co-located tasks. Here the logarithm of a speed is a sum of the job's sensitivity
and the other job's pressure (``interference_model``), because measurements are few.
"""

from __future__ import annotations

from scheduler_feedback.policies.sharing.case import Case, Chance, combined, pays
from scheduler_feedback.policies.sharing.interference_model import measured, predicted_speed
from scheduler_feedback.policies.sharing.pair_speeds import known

UNTRIED = 1.0
"""Combined throughput that is assumed if a workload was never measured beside another: others go first."""


def chance(case: Case) -> Chance | None:
    """Return the predicted throughput of both together; None if it is below that of the larger one alone."""
    if case.others:
        return None
    guest, host = case.guest.spec, case.host.spec
    if known(case.state, guest, host) is None and not (measured(case.state, guest) and measured(case.state, host)):
        return Chance(UNTRIED, "not measured yet")
    mine, theirs = predicted_speed(case.state, guest, host), predicted_speed(case.state, host, guest)
    together = combined(len(case.host.ranks), theirs, guest.ranks, mine)
    if not pays(len(case.host.ranks), theirs, guest.ranks, mine, case.state.policy.separate_below):
        return None
    return Chance(together, f"predicted {together:.2f}x together")
