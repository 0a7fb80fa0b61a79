"""Mutants of jobs that share slots."""

from benchmarks.mutants.mutant import Mutant

_JOIN = ("tests/policies/test_sharing.py",)
_MEMORY = ("tests/policies/test_learnt_memory.py",)
_RULES = ("tests/policies/test_sharing_rules.py",)
_KEPT = ("tests/policies/test_openings.py",)
_LENT = ("tests/policies/test_muxflow.py",)
_LATENCIES = ("tests/controller/test_latencies.py",)
_SERVICES = ("tests/sim/test_services.py",)
_SPEEDS = ("tests/controller/test_shared_speeds.py",)
_MOVES = ("tests/policies/test_guest_moves.py",)
_SHIFTS = ("tests/sim/test_time_shifts.py",)
_SHIFTED = ("tests/policies/test_time_shifts.py",)
_REPORTS = ("tests/controller/test_time_shift_reports.py",)

MUTANTS = (
    Mutant("policies.sharing.guest_moves:_lost_share", "1 - _own_speed(state, job)", "_own_speed(state, job)", _MOVES),
    Mutant("policies.sharing.guest_moves:_possible", "not policy.move_guests", "False", _MOVES),
    Mutant("policies.sharing.guest_moves:move_guests", "(1 + state.policy.migration_margin) * cost", "0", _MOVES),
    Mutant("policies.sharing.room_on_slots:has_room", "> node.jobs_per_slot", "> node.jobs_per_slot + 1", _JOIN),
    Mutant("policies.sharing.room_on_slots:has_room", "sum(needed) > node.slot_memory_mib", "False", _JOIN),
    Mutant("policies.sharing.room_on_slots:has_room", "not all(needed)", "False", _JOIN),
    Mutant("policies.sharing.room_on_slots:has_room", "any(has_outgrown(one) for one in here)", "False", _MEMORY),
    Mutant("policies.sharing.room_on_slots:may_join", "and not job.alone", "", _MEMORY),
    Mutant("policies.sharing.memory_pressure:memory_measured", "job.attempt != event.attempt", "False", _MEMORY),
    Mutant("policies.sharing.memory_pressure:separate_full_slots", "_used_mib(staying) <= full_mib", "False", _MEMORY),
    Mutant("policies.sharing.memory_pressure:_stays", "not job.guest_of,", "False,", _MEMORY),
    Mutant("policies.sharing.memory_pressure:_stays", "-(job.attempt_started_ns or 0)", "0", _MEMORY),
    Mutant("policies.sharing.memory_pressure:_left_mib", "total_mib - _used_mib(others)", "total_mib", _MEMORY),
    Mutant("policies.sharing.memory_pressure:ran_out", "index.keep_alone(job)", "pass", _MEMORY),
    Mutant("policies.index.scheduling_index:SchedulingIndex._plan_held", "if partners and not least:", "if False:", _MEMORY),
    Mutant("policies.index.scheduling_index:SchedulingIndex._room_mib", "max(planned_mib(one), one.peak_mib)", "0", _MEMORY),
    Mutant("policies.shares.declared_parts:part_of", "or has_outgrown(job)", "", _MEMORY),
    Mutant("policies.shares.declared_parts:Part.known_on", "self.learnt and", "False and", _MEMORY),
    Mutant("policies.sharing.openings:Openings.chances", "known.speeds != speeds", "False", _KEPT),
    Mutant("policies.sharing.openings:Openings._chance", "group in known.by_group", "False", _KEPT),
    Mutant("policies.sharing.openings:Openings.update", "self._news < len(news)", "False", _KEPT),
    Mutant(
        "policies.sharing.guests:_best",
        "chance.gain <= best[1].gain",
        "chance.gain >= best[1].gain",
        (*_JOIN, *_RULES, *_KEPT, "tests/policies/test_sharing_chances.py"),
    ),
    Mutant("policies.sharing.guests:_best", "reserved and not reserved.isdisjoint", "False and reserved.isdisjoint",
           (*_JOIN, *_RULES)),
    Mutant("policies.sharing.pair_speeds:refresh", "alone * max(beside * (job.slot_part or 1.0), 0.01)", "alone",
           (*_JOIN, *_RULES)),
    Mutant("policies.sharing.muxflow:chance", "mine < LEAST_PART", "False", _LENT),
    Mutant("policies.sharing.muxflow:chance", "LEND_BELOW * objective", "objective", _LENT),
    Mutant("policies.sharing.muxflow:part_for", "1 - service.busy", "1.0", _LENT),
    Mutant("policies.sharing.lending:latency_measured", "event.seconds > recall_seconds(job)", "False", _LENT),
    Mutant("policies.sharing.lending:latency_measured", "not state.frozen", "True", _LENT),
    Mutant("policies.sharing.lending:_learn", "slower / (guest.slot_part or 1.0)", "slower", _LENT),
    Mutant("policies.sharing.matching:_assign", "least[one] < delta", "least[one] > delta", _LENT),
    Mutant("policies.sharing.matching:matched", "row[numbers[name]] = -gain", "row[numbers[name]] = gain", _LENT),
    Mutant("controller.reports.latencies:latency_of", "requests.seconds[0] * 1e9", "0", _LATENCIES),
    Mutant("controller.reports.latencies:Latencies.measure", "< LEAST_REQUESTS", "< 0", _LATENCIES),
    Mutant("core.telemetry.steps.latency_reports:LatencyReports.report", "abs(seconds - before) <= CHANGE * before", "False",
           _LATENCIES),
    Mutant("core.telemetry.steps.latency_reports:LatencyReports.due", "known[0] != group", "False", _LATENCIES),
    Mutant("policies.network.windows:_placed", "busy[cell] + load - capacity", "load - capacity", _SHIFTS),
    Mutant("policies.network.windows:better_windows", "speeds > most", "speeds < most", _SHIFTS),
    Mutant("policies.network.windows:_placed", "common / repeats", "common", _SHIFTS),
    Mutant("policies.network.link_speeds:link_speeds", "min(window.wait(now), credit[number])", "window.wait(now) / 4", _SHIFTS),
    Mutant("policies.network.link_speeds:Window.wait", "late <= LATE * self.period_seconds", "late <= 0", _SHIFTS),
    Mutant("policies.network.time_shifts:_settled", ">= began_ns", ">= 0", _SHIFTED),
    Mutant("policies.network.time_shifts:_harmful", "gain > 1 + LEAST_GAIN", "True", _SHIFTED),
    Mutant("policies.network.time_shifts:speed_measured", "min(network, before.network_seconds)", "network", _SHIFTED),
    Mutant("controller.reports.time_shift_reports:TimeShiftReports._with_delay", "delay / steps", "delay", _REPORTS),
    Mutant("controller.reports.time_shift_reports:TimeShiftReports.measure", "if own:", "if False:", _REPORTS),
    Mutant("sim.speeds.services:Load.at", "begin <= seconds", "False", _SERVICES),
    Mutant("sim.speeds.services:Services._count", "> objective", "> 10 * objective", _SERVICES),
    Mutant("policies.sharing.case:pays", ">= LEAST_PART", ">= 0", _RULES),
    Mutant("policies.sharing.sjf_bsbf:saved_seconds", "min(wait, host)", "host", _RULES),
    Mutant("policies.sharing.separation:leave_with_host", "not in _LEAVES", "in _LEAVES", _JOIN),
    Mutant("policies.sharing.pair_speeds:learn", "before is None", "True", _RULES),
    Mutant("policies.index.held_slots:HeldSlots._release_of_all", "max(ends, default=release.at_ns)", "release.at_ns",
           _JOIN),
    Mutant("controller.reports.shared_speeds:SharedSpeeds._one", "< STEPS * seconds", "< 0", _SPEEDS),
    Mutant("controller.reports.shared_speeds:SharedSpeeds._one", "now_ns - since_ns < TRIAL_NS", "False", _SPEEDS),
)  # fmt: skip
