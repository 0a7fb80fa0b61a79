"""The oracle of the ordinary day reports each defect in a history that is otherwise correct."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.ordinary import oracle as oracle_package
from benchmarks.ordinary.oracle.facts import Failure, Outage, Process
from tests.ordinary.history import BEGIN, History


@pytest.fixture
def history() -> History:
    """Return a correct history: a running gang of two, a finished job, a failed job, and a pending job."""
    made = History()
    for job, ranks in (("j-000001", 2), ("j-000002", 1)):
        made.submit(job, ranks)
    made.submit("j-000003", 1, fails=True)
    made.submit("j-000004", 4)
    made.start("j-000001", ("node-0", 0), ("node-0", 1))
    made.start("j-000002", ("node-1", 0))
    made.end("j-000002")
    made.start("j-000003", ("node-1", 0))
    made.end("j-000003", code=3)
    made.wait("j-000004", "first in the queue; needs 4 slots, 2 available now; expected to start in 60 min")
    made.queue["reserved_for"] = "j-000004"
    return made


def checks(found: list[Failure]) -> set[str]:
    return {failure.check for failure in found}


def test_a_history_without_a_defect_has_no_failure(history: History) -> None:
    assert history.judge(last=120.0) == []


def test_a_slot_held_twice_is_caught_at_once_in_the_api(history: History) -> None:
    history.submit("j-000005")
    history.start("j-000005", ("node-0", 1))
    assert {"slots_once", "processes_fit"} <= checks(history.judge())


def test_more_ranks_than_slots_are_caught_in_the_process_table(history: History) -> None:
    history.submit("j-000005")
    history.start("j-000005", ("node-1", 0))
    # All statements are consistent, but the node runs two more of its ranks than it has slots.
    history.processes.append(Process(900, "j-000009", 1, 0, "node-0", True, BEGIN + 2))
    assert checks(history.judge()) == {"processes_fit"}


def test_a_slot_that_does_not_exist_is_caught(history: History) -> None:
    history.submit("j-000005")
    history.start("j-000005", ("node-1", 2))
    assert "slots_once" in checks(history.judge())


def test_a_lost_job_is_caught(history: History) -> None:
    del history.jobs["j-000004"]
    assert checks(history.judge()) == {"job_lost"}


def test_a_rank_started_twice_in_an_attempt_is_caught(history: History) -> None:
    history.facts.lives["j-000002", 1, 0].starts = 2
    assert checks(history.judge()) == {"run_twice"}


def test_a_completed_job_that_ran_again_is_caught(history: History) -> None:
    history.start("j-000002", ("node-1", 0), seconds=12.0)
    assert "run_twice" in checks(history.judge())


def test_a_failed_job_without_retries_that_ran_again_is_caught(history: History) -> None:
    history.start("j-000003", ("node-1", 1), seconds=12.0)
    assert "run_twice" in checks(history.judge())


def test_a_failed_job_with_retries_may_run_again(history: History) -> None:
    history.submit("j-000005", fails=True, max_retries=1)
    history.start("j-000005", ("node-1", 0))
    history.end("j-000005", code=1)
    history.start("j-000005", ("node-1", 0), seconds=12.0)
    assert history.judge() == []


def test_two_concurrent_attempts_are_caught(history: History) -> None:
    old = next(one for one in history.processes if one.job == "j-000001")
    history.start("j-000001", ("node-1", 0), ("node-1", 1), seconds=12.0)
    assert old in history.processes
    assert "run_twice" in checks(history.judge())


@pytest.mark.parametrize("leader", [True, False])
def test_a_stray_process_of_an_ended_job_is_caught(history: History, leader: bool) -> None:
    history.processes.append(Process(900, "j-000002", 1, 0, "node-1", leader, BEGIN + 3))
    assert "left_behind" in checks(history.judge())


def test_a_stray_process_of_an_earlier_attempt_is_caught(history: History) -> None:
    history.submit("j-000005", restartable=True)
    history.start("j-000005", ("node-1", 0))
    history.processes.append(replace(history.processes[-1], leader=False, pid=900))
    history.facts.lives["j-000005", 1, 0].terminated = BEGIN + 8
    history.processes = [one for one in history.processes if not (one.job == "j-000005" and one.leader)]
    history.start("j-000005", ("node-1", 0), seconds=12.0)
    assert checks(history.judge()) == {"left_behind"}


def test_a_running_job_without_a_process_is_caught_after_a_delay(history: History) -> None:
    history.processes = []
    assert history.judge() == []
    assert checks(history.judge(20.0, 40.0)) == {"state_true"}


def test_running_on_another_node_than_reported_is_caught(history: History) -> None:
    history.processes[0] = replace(history.processes[0], node="node-1")
    assert checks(history.judge()) == {"state_true"}


def test_another_pid_than_reported_is_caught(history: History) -> None:
    history.jobs["j-000001"]["ranks"][0]["pid"] = 77
    assert checks(history.judge()) == {"state_true"}


def test_a_completed_job_with_a_failed_rank_is_caught(history: History) -> None:
    history.facts.lives["j-000002", 1, 0].code = None
    assert checks(history.judge()) == {"end_true"}


def test_a_wrong_exit_code_is_caught(history: History) -> None:
    history.jobs["j-000003"]["ranks"][0]["exit_code"] = 1
    assert "exit_code" in checks(history.judge())


def test_a_wrong_failure_reason_is_caught(history: History) -> None:
    history.jobs["j-000003"]["reason"] = "rank 0 on node node-1 exited with 9"
    assert checks(history.judge()) == {"end_true"}


def test_a_failure_of_a_job_without_errors_is_caught(history: History) -> None:
    history.jobs["j-000002"] |= {"state": "failed", "reason": "the backend gave no reason"}
    assert "end_true" in checks(history.judge())


def test_a_cancelled_job_without_a_cancel_request_is_caught(history: History) -> None:
    history.jobs["j-000002"] |= {"state": "cancelled", "reason": "cancelled"}
    assert checks(history.judge()) == {"end_true"}


def test_an_ignored_cancel_request_is_caught(history: History) -> None:
    history.command("cancel", "j-000001")
    assert history.judge(19.0, 25.0) == []
    assert checks(history.judge(26.0, 90.0)) == {"cancelled"}


@pytest.mark.parametrize(
    ("key", "seconds"), [("submitted_ns", 9.0), ("submitted_ns", 0.1), ("ended_ns", 5.0), ("attempt_started_ns", 3.0)]
)
def test_an_impossible_time_is_caught(history: History, key: str, seconds: float) -> None:
    history.jobs["j-000002"][key] = int((BEGIN + seconds) * 1e9)
    assert checks(history.judge()) == {"time_true"}


def test_a_start_during_a_freeze_is_caught(history: History) -> None:
    history.command("freeze", seconds=0.5)
    history.command("thaw", seconds=8.0)
    assert "frozen" in checks(history.judge())


def test_a_start_on_a_node_in_maintenance_is_caught(history: History) -> None:
    history.command("maintenance", "node-0", seconds=1.2)
    assert checks(history.judge()) == {"maintenance"}


@pytest.mark.parametrize(
    "stated", [{"state": "pending"}, {"attempt": 2}, {"ranks_total": 3}, {"queue": "guest"}, {"exit_codes": [0, 0]}]
)
@pytest.mark.parametrize("source", ["gangwatch jobs", "page /jobs"])
def test_differences_of_command_line_and_page_from_the_api_are_caught(
    history: History, source: str, stated: dict[str, object]
) -> None:
    history.judge()
    history.state(source, "j-000001", **stated)
    assert checks(history.judge(20.0)) == {"agreement"}


def test_a_job_that_is_only_on_the_page_is_caught(history: History) -> None:
    history.judge()
    history.state("page /", "j-000999", state="running")
    assert checks(history.judge(20.0)) == {"agreement"}


def test_a_reason_that_differs_on_the_page_is_caught(history: History) -> None:
    history.judge()
    history.state("page /", "j-000004", state="pending", waiting_because="waits until j-000001 ends")
    assert checks(history.judge(20.0)) == {"agreement"}


def test_a_different_reason_while_other_jobs_change_is_no_failure(history: History) -> None:
    history.judge()
    history.state("page /", "j-000004", state="pending", waiting_because="waits until j-000001 ends")
    history.jobs = {name: dict(job) for name, job in history.jobs.items()}
    history.submit("j-000005", 1)
    history.wait("j-000005", "needs 1 slot; not enough are free; behind j-000004 in the queue")
    assert "agreement" not in checks(history.judge(20.0))


def test_the_same_reason_a_moment_later_is_no_failure(history: History) -> None:
    history.judge()
    because = "first in the queue; needs 4 slots, 2 available now; expected to start in 59 min"
    history.state("page /", "j-000004", state="pending", waiting_because=because)
    assert history.judge(20.0) == []


def test_an_end_missing_on_the_jobs_page_is_caught(history: History) -> None:
    history.judge()
    history.state("page /jobs/j-000002", "j-000002", state="completed", times={int(BEGIN + 1), int(BEGIN + 12)})
    assert checks(history.judge(20.0)) == {"agreement"}


def test_a_growing_run_time_of_an_ended_job_is_caught(history: History) -> None:
    history.judge()
    history.state("page /jobs", "j-000002", state="completed", counting=True)
    assert checks(history.judge(20.0)) == {"agreement"}


def test_old_and_new_values_are_accepted_for_a_concurrent_change(history: History) -> None:
    history.judge()
    history.state("page /", "j-000001", state="stopping")
    history.jobs = {name: dict(job) for name, job in history.jobs.items()}
    history.jobs["j-000001"]["state"] = "stopping"
    assert history.judge(20.0) == []


@pytest.mark.parametrize(
    "reason",
    [
        "all actions are frozen by ordinary",
        "waits until j-000001 ends",
        "needs 2 slots; not enough are free; behind j-000004 in the queue",
        "needs 2 slots; not enough are free",
        "enough slots are free, but it is expected to run too long and would delay j-000001, first in the queue",
        "first in the queue; needs 2 slots, 3 available now; expected to start in 5 s",
        "queue small is limited to 2 slots and uses 2",
        "needs 2 slots; the available nodes have 4 slots in total",
        "its reserved slots on node-1:0,1 are not free yet",
        "cannot start with the present configuration: it asks for 2 ranks; queue x may hold at most 0 slots: use "
        "another",
        "it is written in the stars",
        "",
    ],
)
def test_a_wrong_pending_reason_is_caught(history: History, reason: str) -> None:
    history.submit("j-000005", 2)
    history.wait("j-000005", reason)
    found = history.judge(last=60.0)
    assert checks(found) == {"reason"}
    assert found[0].subject == "j-000005"


@pytest.mark.parametrize("word", ["completes", "ends", "starts"])
def test_a_fulfilled_dependency_is_not_a_valid_reason(history: History, word: str) -> None:
    history.submit("j-000005", 1, after=[("j-000002", "ok")])
    history.wait("j-000005", f"waits until j-000002 {word}")
    assert checks(history.judge(last=60.0)) == {"reason"}


def test_an_unfulfilled_dependency_is_a_valid_reason(history: History) -> None:
    history.submit("j-000005", 1, after=[("j-000001", "ok")])
    history.wait("j-000005", "waits until j-000001 completes")
    assert history.judge(last=60.0) == []


def test_a_limit_that_is_not_reached_is_not_a_valid_reason(history: History) -> None:
    history.facts.queues = {"small": {"name": "small", "limit": 4}}
    history.submit("j-000005", 1, queue="small")
    history.wait("j-000005", "queue small is limited to 4 slots and uses 0")
    assert checks(history.judge(last=60.0)) == {"reason"}


def test_a_closed_queue_is_a_valid_reason_and_an_open_one_is_not(history: History) -> None:
    history.facts.queues = {"guest": {"name": "guest", "limit": 0}}
    history.submit("j-000005", 2, queue="guest")
    limit = "asks for 2 ranks; queue guest may hold at most 0 slots: use another"
    never = f"cannot start with the present configuration: it {limit}"
    history.wait("j-000005", never)
    assert history.judge(last=60.0) == []
    history.facts.queues["guest"]["limit"] = 4
    assert checks(history.judge(61.0, 90.0)) == {"reason"}


def test_a_head_job_that_waits_although_it_fits_is_caught(history: History) -> None:
    history.jobs["j-000004"] |= {"size": 2}
    history.facts.owner_of["j-000004"].request["ranks"] = 2
    history.wait("j-000004", "first in the queue; needs 2 slots, 2 available now; expected to start in 1 s")
    assert "room" in checks(history.judge(last=60.0))


def quota_history(straddles: bool = False) -> History:
    """Return a history in which queue guest holds all four slots with a quota of two, and an owner's job waits for
    two."""
    made = History()
    made.facts.policy = {"order": "fair", "preempt": True, "min_run_seconds": 30.0}
    made.facts.queues = {"owner": {"name": "owner", "quota": 2}, "guest": {"name": "guest", "quota": 2}}
    places = [("node-0", 0), ("node-0", 1), ("node-1", 0), ("node-1", 1)]
    guests = [places] if straddles else [places[:2], places[2:]]
    for number, where in enumerate(guests):
        job = f"j-00000{number + 1}"
        made.submit(job, len(where), queue="guest", preemptible=True, restartable=True)
        made.start(job, *where)
    made.submit("j-000009", 2, queue="owner")
    made.wait("j-000009", "first in the queue; needs 2 slots, 0 available now; expected to start in 60 min")
    made.queue["reserved_for"] = "j-000009"
    return made


@pytest.mark.parametrize("straddles", [False, True])
def test_a_late_reclaim_of_a_quota_is_caught(straddles: bool) -> None:
    history = quota_history(straddles)
    assert history.judge(19.0, 36.0) == []  # allowed from 31.9 s on: guests have had their minimum runtime
    found = history.judge(37.0, 45.0)
    assert checks(found) == {"quota"}
    assert found[0].wall - BEGIN < 32 + 5 + 2


def test_a_timely_reclaim_of_a_quota_is_no_failure() -> None:
    history = quota_history()
    history.judge(19.0, 34.0)
    history.jobs["j-000002"]["state"] = "stopping"
    history.wait("j-000009", "its reserved slots on node-1:0,1 are not free yet")
    assert history.judge(35.0, 60.0) == []


def test_guests_that_may_not_be_stopped_need_not_yield() -> None:
    history = quota_history()
    for job in ("j-000001", "j-000002"):
        history.facts.owner_of[job].request["preemptible"] = False
    assert history.judge(last=120.0) == []


@pytest.mark.parametrize(("priority", "expected"), [(100, set()), (0, {"quota"})])
def test_slots_for_a_gang_of_higher_priority_need_not_be_yielded(priority: int, expected: set[str]) -> None:
    history = quota_history()
    history.submit("j-000010", 4, priority=priority)
    first, second = ("j-000010", "j-000009") if priority else ("j-000009", "j-000010")
    needs = {"j-000009": "needs 2 slots", "j-000010": "needs 4 slots"}
    history.wait(first, f"first in the queue; {needs[first]}, 0 available now; expected to start in 60 min")
    history.wait(second, f"{needs[second]}; not enough are free; behind {first} in the queue")
    history.queue["reserved_for"] = first
    assert checks(history.judge(last=60.0)) == expected


def test_a_verdict_on_an_undisturbed_rank_is_caught(history: History) -> None:
    history.add_verdict("j-000001", 1, "straggler", "compute", 15.0)
    assert checks(history.judge()) == {"false_verdict"}


@pytest.mark.parametrize(
    ("kind", "rank", "verdict", "cause"),
    [
        ("held", 0, "straggler", "suspended"),  # the other rank was stopped
        ("held", 1, "workload", "checkpoint"),
        ("stopped", 1, "straggler", "cpu-contention"),
        ("killed", 1, "hang", "never-arrived"),
    ],
)
def test_a_wrong_verdict_about_a_disturbed_job_is_caught(
    history: History, kind: str, rank: int, verdict: str, cause: str
) -> None:
    history.disturb(kind, "j-000001", 1, 10.0)
    history.add_verdict("j-000001", rank, verdict, cause, 15.0)
    assert checks(history.judge()) == {"false_verdict"}


def test_a_verdict_before_the_disturbance_is_caught(history: History) -> None:
    history.disturb("held", "j-000001", 1, 10.0)
    history.add_verdict("j-000001", 1, "straggler", "suspended", 5.0)
    assert checks(history.judge()) == {"false_verdict"}


def test_a_starved_rank_may_be_reported_as_starved(history: History) -> None:
    history.processes = [replace(one, waited=8.0 if one.rank == 1 else 0.1) for one in history.processes]
    history.add_verdict("j-000001", 1, "straggler", "cpu-contention", 15.0)
    assert history.judge() == []


def test_a_disturbance_that_is_not_detected_in_time_is_caught(history: History) -> None:
    history.disturb("stopped", "j-000001", 1, 20.0, expected=70.0)
    assert history.judge(21.0, 89.0) == []
    assert checks(history.judge(90.0, 100.0)) == {"missed_verdict"}


def test_a_detected_disturbance_is_no_failure(history: History) -> None:
    history.disturb("stopped", "j-000001", 1, 20.0, expected=70.0)
    history.add_verdict("j-000001", 1, "hang", "never-arrived", 61.0)
    assert history.judge(62.0, 200.0) == []


def test_a_daemon_that_exits_unexpectedly_is_caught(history: History) -> None:
    history.daemon_ends("controller")
    assert checks(history.judge()) == {"daemon_ended"}


def test_a_daemon_killed_by_the_harness_is_no_failure(history: History) -> None:
    history.daemon_ends("controller", touched=BEGIN + 5)
    assert history.judge() == []


def test_the_oracle_imports_nothing_of_the_product() -> None:
    folder = Path(oracle_package.__file__).parent
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                ours = name.split(".")[0] in ("agent", "exporter", "scheduler_feedback", "dashboards", "gangwatch")
                assert not ours, f"{file.name} imports {name}"
                assert not name.startswith("benchmarks") or name.startswith("benchmarks.ordinary.oracle"), name


def test_a_detected_hang_without_a_restart_is_caught(history: History) -> None:
    history.disturb("stopped", "j-000001", 1, 20.0, expected=70.0)
    history.facts.disturbances[0].restarts = True
    history.add_verdict("j-000001", 1, "hang", "never-arrived", 61.0)
    assert history.judge(62.0, 130.0) == []
    assert checks(history.judge(133.0, 150.0)) == {"hang_restarted"}


def test_an_early_report_of_a_hang_restarts_nothing(history: History) -> None:
    history.disturb("stopped", "j-000001", 1, 20.0, expected=70.0)
    history.facts.disturbances[0].restarts = True
    history.add_verdict("j-000001", 1, "hang", "never-arrived", 34.0, confidence=0.85)
    assert history.judge(35.0, 89.0) == []
    assert checks(history.judge(91.0, 120.0)) == {"missed_verdict"}, "it must become certain"


def test_a_starved_rank_must_be_detected_only_if_the_process_table_shows_it(history: History) -> None:
    history.disturb("outspun", "j-000001", 1, 20.0, expected=60.0)
    assert history.judge(21.0, 90.0) == []
    history.processes = [replace(one, waited=40.0 if one.rank == 1 else 2.0) for one in history.processes]
    assert checks(history.judge(91.0)) == {"missed_verdict"}


@pytest.mark.parametrize(("node", "expected"), [("node-0", set()), ("node-1", {"false_verdict"})])
def test_a_stale_node_is_valid_only_if_its_agent_was_stopped(history: History, node: str, expected: set[str]) -> None:
    history.facts.outages.append(Outage(node, BEGIN + 10, BEGIN + 30))
    history.add_verdict("j-000001", 1, "health", "lost", 25.0)
    assert checks(history.judge(30.0)) == expected
