"""Mutants of learnt speeds, joint sizes, and the rules for shared slots."""

from benchmarks.mutants.mutant import Mutant

_LEARNT = ("tests/policies/test_learnt_speeds.py",)
_REPORTS = ("tests/core/test_speed_reports.py",)
_MEMORY = ("tests/policies/test_learnt_memory.py",)
_MEASURED = ("tests/core/test_device_memory.py",)
_TRAFFIC = ("tests/policies/test_network_traffic.py",)
_CAPS = ("tests/sim/test_power_caps.py",)
_PLAN = ("tests/policies/test_slot_plan.py",)
_RAILS = ("tests/policies/test_rails.py",)
_SIZES = ("tests/policies/test_sizes.py",)
_RULES = (
    "tests/policies/test_sharing_chances.py",
    "tests/policies/test_sharing_rules.py",
    "tests/policies/test_sharing.py",
)

MUTANTS = (
    # --- learnt speeds ---
    Mutant("core.telemetry.steps.speed_reports:SpeedReports._take", "min(window.warm, len(steps))", "0", _REPORTS),
    Mutant("core.telemetry.steps.speed_reports:SpeedReports._take", "work / seconds", "work", _REPORTS),
    Mutant("policies.speeds.speed_model:SpeedModel.__init__", "NOISE * NOISE / one.weight", "NOISE * NOISE", _LEARNT),
    Mutant("policies.speeds.speed_model:SpeedModel.log_ratio", "spread -= value * value", "pass", _LEARNT),
    Mutant("policies.speeds.learnt_speeds:record", "rows[0].unit != unit", "False", _LEARNT),
    Mutant("policies.speeds.learnt_speeds:LearntSpeeds.knows", "and self._state.policy.learn_speeds", "", _LEARNT),
    # --- learnt device memory ---
    Mutant("policies.speeds.learnt_memory:need_mib", "PRIOR_RUNS * PRIOR_SPREAD**2 + ", "", _MEMORY),
    Mutant("policies.speeds.learnt_memory:need_mib", "factor * math.sqrt(variance)", "0.0", _MEMORY),
    Mutant("policies.speeds.learnt_memory:record", "len(peaks) > MOST_RUNS", "False", _MEMORY),
    Mutant("policies.speeds.learnt_memory:learnt_mib", "or spec.slot_memory_mib", "", _MEMORY),
    Mutant("core.telemetry.device_memory:NodeMemory.of", "max(used", "min(used", _MEASURED),
    Mutant("core.telemetry.device_memory:NodeMemory.__init__", "if process in owners", "", _MEASURED),
    Mutant("core.telemetry.steps.memory_reports:MemoryReports._take", "if seen.warm or", "if", _MEASURED),
    Mutant("core.telemetry.steps.memory_reports:MemoryReports._take", "GROWTH * seen.reported_mib", "0", _MEASURED),
    # --- learnt traffic and classes of the network ---
    Mutant("core.telemetry.steps.speed_reports:SpeedReports._take", ".min(axis=1).sum()", ".max(axis=1).sum()", _REPORTS),
    Mutant("policies.speeds.learnt_traffic:record_wait", "or place.level == 0", "", _TRAFFIC),
    Mutant("policies.speeds.learnt_traffic:record_wait", "min(seconds / FULL_SECONDS, 1.0)", "1.0", _TRAFFIC),
    Mutant("policies.network.network_class:intensity", "max(share, LEAST_SHARE)", "share + LEAST_SHARE", _TRAFFIC),
    Mutant("policies.network.network_class:best_class", "/ 2 + SAME * own", "/ 2", _TRAFFIC),
    Mutant("policies.index.slot_plan:Plan.uplink_cost", "(1 + other.ranks / gang.ranks)", "1", _PLAN),
    Mutant("policies.index.slot_plan:Plan.uplink_cost", "or not other.rails & gang.rails", "", _RAILS),
    Mutant("policies.index.uplink_loss:congested", "if not both[0][domain] & both[1][domain]:", "if False:", _RAILS),
    Mutant("policies.network.rails:on_quiet_rails", "if any(plan.topology.islands[number]", "if any(False", _RAILS),
    Mutant("policies.network.rails:_lightest", "slot in own or", "", _RAILS),
    Mutant("policies.queue.slot_assignment:_slices", "not plan.uplink_slowdown and", "", _TRAFFIC),
    # --- power limits ---
    Mutant("sim.studies.power_caps:cheapest", "1 + waiting + gpus", "1 + gpus", _CAPS),
    Mutant("sim.studies.power_caps:within_budget", "more_watts <= left and", "", _CAPS),
    Mutant("sim.studies.power_caps:_useful", "or one.speed > found[-1].speed", "or one", _CAPS),
    # --- sizes ---
    Mutant("policies.sizes.reallocation:_placed", "index.vacate(job)", "pass", _SIZES),
    Mutant("policies.sizes.reallocation:reallocate", "slots[_type_of(index, job)] += len(job.ranks)", "pass", _SIZES),
    Mutant("policies.sizes.choosing:_swap", "one = want if fits else have", "one = want", _SIZES),
    Mutant("policies.sizes.choosing:choose", "_use_the_rest(jobs, chosen, left)", "pass", _SIZES),
    Mutant("policies.sizes.options:sizes_of", "least <= size <= most", "size <= most", _SIZES),
    Mutant("policies.sizes.options:sizes_of", "and size % spec.unit == 0", "", _SIZES),
    Mutant("policies.sizes.value:valued", "value=-left_seconds / one.speed", "value=one.speed", _SIZES),
    Mutant("policies.sizes.value:reduced", "option.value * share)", "option.value)", _SIZES),
    # --- rules for shared slots ---
    Mutant("policies.sharing.antman:chance", "theirs < LEAST_HOST_SPEED", "False", _RULES),
    Mutant("policies.sharing.antman:chance", "not guest.opportunistic or host.opportunistic", "host.opportunistic", _RULES),
    Mutant("policies.sharing.case:combined", "/ max(host_ranks, guest_ranks)", "/ host_ranks", _RULES),
    Mutant("policies.sharing.gandiva:chance", "if case.others:", "if False:", _RULES),
    Mutant("policies.sharing.gandiva:chance", "if not pays(", "if False and not pays(", _RULES),
    Mutant("policies.sharing.iadeep:chance", "if not pays(", "if False and not pays(", _RULES),
    Mutant("policies.sharing.iadeep:chance", "return Chance(UNTRIED", "return None if case else Chance(UNTRIED", _RULES),
    Mutant("policies.sharing.interference_model:_effects", "[0.0, SHRINKAGE]", "[0.0, 10.0]", _RULES),
    Mutant("policies.sharing.interference_model:predicted_speed", "if pair is not None:", "if False:", _RULES),
    Mutant("policies.sharing.muri:chance", "if gain <= without:", "if False:", _RULES),
    Mutant("policies.sharing.muri:iteration_seconds", "(phase - offset)", "(phase + 0 * offset)", _RULES),
    Mutant("policies.sharing.pair_speeds:assumed_speed", "if not spec.opportunistic:", "if False:", _RULES),
    Mutant("policies.sharing.separation:_judge", "theirs < LEAST_HOST_SPEED", "False", _RULES),
    Mutant("policies.sharing.sjf_bsbf:saved_seconds", "host_ends <= guest_ends", "host_ends > guest_ends", _RULES),
)  # fmt: skip
