"""Mutants of the power budget."""

from benchmarks.mutants.mutant import Mutant

_BUDGET = ("tests/policies/test_power_budget.py",)
_CHOICE = ("tests/policies/test_power_allocation.py",)
_SPEEDS = ("tests/policies/test_power_speeds.py",)
_METRICS = ("tests/policies/test_power_metrics.py",)

MUTANTS = (
    Mutant("policies.power.account:Account.fresh", "if not self._index.sharers.get(slot)", "", _BUDGET),
    Mutant("policies.power.account:Account.need_watts", "- gpus.idle_watts", "", _BUDGET),
    Mutant("policies.power.admission:delayed", "index.reserve(job, slots)", "pass", _BUDGET),
    Mutant("policies.power.admission:refusal", "- reserved_watts", "", _BUDGET),
    Mutant("policies.power.allocation:_rise", "or more > left", "", _CHOICE),
    Mutant("policies.power.allocation:choose", "WORTH * _speed", "_speed", _CHOICE),
    Mutant("policies.power.gpus:Gpus.watts", "max(wanted, present) if confirmed else wanted", "wanted", _BUDGET),
    Mutant("policies.power.gpus:never_fits", "+ idle - gpus.idle_watts", "", _BUDGET),
    Mutant("policies.power.limits:set_limits", "more <= room + TINY", "True", _BUDGET),
    Mutant("policies.power.limits:_rises_ns", "+ nanoseconds(HOLD_SECONDS)", "", _BUDGET),
    Mutant("policies.power.limits:wanted_limits", "max(limits.get(place, 0.0), limit)", "0.0", _BUDGET),
    Mutant("policies.power.own_limits:explained_by_limit", "or not _confirmed(context, job, verdict)", "", _BUDGET),
    Mutant("policies.power.own_limits:at_full_power", "return None", "pass", _BUDGET),
    Mutant("policies.power.power_metrics:power_metrics", "- account.idle_watts", "", _METRICS),
    Mutant("policies.power.power_metrics:power_metrics", "if not in_force(state):", "if False:", _METRICS),
    Mutant("policies.power.power_speeds:default_speed", "max(share, 0.05)", "0.4", _SPEEDS),
    Mutant("policies.power.power_speeds:sensitivity", "joint + PRIOR", "joint", _SPEEDS),
    Mutant("policies.power.power_speeds:lag", "or row.x / row.weight <= x + NEAR", "", _SPEEDS),
)
