"""The small parts of the Slurm backend, each by itself: what it tells, keeps and asks. No Slurm needed."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from agent.schema.clock import ManualClock
from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm import asking, commands, parse_json, parse_text, wishes
from scheduler_feedback.backends.slurm.announcements import Announcements
from scheduler_feedback.backends.slurm.audit import Audit, Line, lines
from scheduler_feedback.backends.slurm.commands import Commands, programs
from scheduler_feedback.backends.slurm.facts import SlurmJob, SlurmNode, base_state
from scheduler_feedback.backends.slurm.gres import gpus_of, indices_of, wanted
from scheduler_feedback.backends.slurm.hands import Hands
from scheduler_feedback.backends.slurm.hostlist import MOST, expand
from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.job import Job, JobKind, JobSpec, JobState
from scheduler_feedback.core.state import Decision, Mode, PastVerdict, Policy, State
from scheduler_feedback.core.verdict import Cause, Evidence, Kind, Verdict

RECORDED = Path(__file__).with_name("recorded") / "22.05.8"


# --- announcements ---------------------------------------------------------------------------------------------------


def records_in(folder: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in sorted(folder.iterdir())}


def test_each_node_of_slurm_has_a_record_and_one_that_is_gone_has_none(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    announced = Announcements(folder, "http://{node}.example:9400/{node}")
    announced.write(["n1", "n2"])
    assert records_in(folder) == {
        f"{name}.json": {"pid": 0, "start_time": 0, "node": name, "url": f"http://{name}.example:9400/{name}"}
        for name in ("n1", "n2")
    }
    (folder / "other.json").write_text("{}")  # an agent's own
    announced.write(["n2", "n3"])
    assert set(records_in(folder)) == {"n2.json", "n3.json", "other.json"}


def test_a_record_that_stands_is_not_written_again_and_one_that_failed_is(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    folder.write_text("no folder")
    announced = Announcements(folder, "http://{node}")
    announced.write(["n1"])
    folder.unlink()
    announced.write(["n1"])
    (folder / "n1.json").unlink()
    announced.write(["n1"])
    assert records_in(folder) == {}


# --- asking ----------------------------------------------------------------------------------------------------------


def answering(answer: Callable[[Future[Any]], None]) -> Any:
    def ask(question: Callable[[State], Any], /) -> Future[Any]:
        future: Future[Any] = Future()
        answer(future)
        return future

    return ask


def test_the_cycle_is_believed_and_where_it_does_not_answer_nothing_may_be_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "ANSWER_SECONDS", 0.05)
    cycle = asking.Cycle()
    assert asyncio.run(cycle.frozen()), "there is no cycle yet"
    assert asyncio.run(cycle.asked(lambda state: 1, 7)) == 7
    cycle.ask = answering(lambda future: future.set_result(False))
    assert not asyncio.run(cycle.frozen())
    cycle.ask = answering(lambda future: future.set_result(3))
    assert asyncio.run(cycle.asked(lambda state: 1, 7)) == 3
    cycle.ask = answering(lambda future: future.set_exception(RuntimeError("it stops")))
    assert asyncio.run(cycle.frozen())
    cycle.ask = answering(lambda future: None)
    began = time.monotonic()
    assert asyncio.run(cycle.frozen()), "it has not answered in time"
    assert time.monotonic() - began < 3.0


# --- audit -----------------------------------------------------------------------------------------------------------


def test_every_line_comes_back_in_order_and_a_damaged_one_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "actions.jsonl"
    assert list(lines(path)) == []
    clock = ManualClock(wall_ns=1000)
    audit = Audit(path, clock)
    audit.write("drain", "n1", "done", "it is slow", ["scontrol", "update"], "v-1", ["a", "b"])
    path.write_bytes(path.read_bytes() + b'{"wall_ns": 1\n')
    clock.advance(1e-9)
    audit.write("drain", "n2", "withheld: too many")
    audit.write("drain", "n3", "withheld: frozen")
    assert list(lines(path)) == [
        Line(1000, "drain", "n1", "done", "it is slow", "v-1", ("a", "b"), ("scontrol", "update")),
        Line(1001, "drain", "n2", "withheld: too many"),
        Line(1001, "drain", "n3", "withheld: frozen"),
    ]
    assert audit.counts == {("drain", "done"): 1, ("drain", "withheld"): 2}
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_line_that_can_not_be_written_is_counted_and_stops_nothing(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "absent" / "actions.jsonl", ManualClock())
    audit.write("drain", "n1", "done")
    assert audit.counts == {("drain", "done"): 1}


# --- facts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "base"),
    [
        (["RUNNING"], "RUNNING"),
        (["COMPLETING", "FAILED"], "FAILED"),
        (["CONFIGURING", "PENDING"], "PENDING"),
        (["STAGE_OUT"], "COMPLETED"),
        (["REQUEUE_HOLD", "COMPLETING"], "PENDING"),
        ([], ""),
    ],
)
def test_the_base_state_is_told_from_flags(states: list[str], base: str) -> None:
    assert base_state(states) == base


@pytest.mark.parametrize(
    ("changed", "runs", "waits"),
    [
        ({}, True, False),
        ({"state": "SUSPENDED"}, True, False),
        ({"completing": True}, False, False),
        ({"state": "PENDING"}, False, True),
        ({"state": "PENDING", "completing": True}, False, False),  # requeued, and its processes still end
        ({"state": "COMPLETED"}, False, False),
    ],
)
def test_what_runs_and_what_waits(changed: dict[str, Any], runs: bool, waits: bool) -> None:
    job = dataclasses.replace(SlurmJob(7, "RUNNING"), **changed)
    assert (job.runs, job.waits) == (runs, waits)


@pytest.mark.parametrize(
    ("changed", "room"),
    [
        ({"reason": "Resources"}, True),
        ({"reason": "Priority"}, True),
        ({"reason": "ReqNodeNotAvail, UnavailableNodes:n1"}, True),
        ({"reason": "Resources", "held": True}, False),
        ({"reason": "Dependency"}, False),
        ({"reason": "BeginTime"}, False),
        ({"reason": ""}, False),
        ({"reason": "Resources", "state": "RUNNING"}, False),
    ],
)
def test_only_one_that_lacks_nothing_but_nodes_waits_for_room(changed: dict[str, Any], room: bool) -> None:
    assert dataclasses.replace(SlurmJob(7, "PENDING"), **changed).waits_for_room is room


def test_a_node_is_drained_in_any_word_for_it() -> None:
    for states, drained in (({"IDLE", "DRAIN"}, True), ({"DRAINING"}, True), ({"DRAINED"}, True), ({"DOWN"}, False)):
        assert SlurmNode("n1", 8, states=frozenset(states)).drained is drained


# --- generic resources and host lists --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        (("gres:gpu:6", "gres:gpu:8", "gres:gpu:1", 2, 16), 6),
        (("", "gres:gpu:h200:8", "gres:gpu:1", 2, 16), 16),
        (("", "", "gres:gpu:1", 2, 16), 16),
        (("gres/gpu=6", "", "", 2, 16), 6),
        (("gres:gpu", "", "", 2, 16), 1 * 0),  # no number where only the kind is named inside of a longer word
        (("", "", "", 2, 16), 0),
    ],
)
def test_what_a_job_asks_for_in_all(asked: tuple[str, str, str, int, int], gpus: int) -> None:
    assert wanted(*asked) == gpus


def test_gpus_without_a_number_are_one() -> None:
    assert gpus_of("gpu") == (1, "")
    assert gpus_of("gpu:a100") == (1, "a100")
    assert gpus_of("gpu:a100:2,gpu:a100:4") == (6, "a100")
    assert gpus_of("shard:16") == (0, "")


def test_indices_of_several_kinds_follow_each_other() -> None:
    assert indices_of("gpu:a100:2,gpu:h200:2") == (0, 1, 2, 3)
    assert indices_of("gpu:2(IDX:N/A)") == (0, 1)
    assert indices_of("gpu:h200:2(IDX:6-7),gpu:a100:1(IDX:0)") == (0, 6, 7)
    assert indices_of("(null)") == ()
    with pytest.raises(ValueError, match="no indices of GPUs"):
        indices_of("gpu:2(IDX:0-x)")


def test_a_host_list_has_a_largest_size_and_matching_brackets() -> None:
    assert len(expand(f"n[1-{MOST}]")) == MOST
    for wrong in (f"n[1-{MOST}],m", "n[[1-2]]", "n[1-2]]", "n[5-4]", "a b"):
        with pytest.raises(ValueError, match=r"host list|no range|no name|no number"):
            expand(wrong)
    assert expand("n[3-3]") == ("n3",)


# --- the two forms of Slurm's answers --------------------------------------------------------------------------------


def text_job(**changed: str) -> SlurmJob:
    values = {
        "JobId": "7", "JobName": "x", "UserId": "eve(1001)", "Priority": "10", "JobState": "RUNNING", "Restarts": "2",
        "ExitCode": "0:0", "TimeLimit": "1-02:03:04", "StartTime": "2023-05-04T03:02:01", "EligibleTime": "Unknown",
        "NodeList": "n[1-2]", "NumNodes": "2-4", "BatchFlag": "1", "Requeue": "0",
    }  # fmt: skip
    line = " ".join(f"{key}={value}" for key, value in (values | changed).items() if value)
    return parse_text.jobs(line)[7]


def test_a_line_of_scontrol_gives_times_counts_and_flags() -> None:
    job = text_job()
    assert (job.time_limit_seconds, job.restarts, job.least_nodes) == (93784.0, 2, 2)
    assert (job.user, job.batch, job.requeue, job.exit_code, job.begins_seconds) == ("eve", True, False, 0, 0.0)
    assert job.started_seconds == time.mktime((2023, 5, 4, 3, 2, 1, 0, 0, -1))
    assert job.gpus == ((), ())


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"ExitCode": "3:0"}, {"exit_code": 3}),
        ({"ExitCode": "0:9"}, {"exit_code": 137}),
        ({"TimeLimit": "UNLIMITED"}, {"time_limit_seconds": None}),
        ({"TimeLimit": "00:30:00"}, {"time_limit_seconds": 1800.0}),
        ({"JobState": "PENDING"}, {"nodes": (), "started_seconds": 0.0}),
        ({"JobState": "COMPLETING"}, {"state": "COMPLETED", "completing": True}),
        ({"Priority": "0"}, {"held": True}),
        ({"JobState": "SPECIAL_EXIT"}, {"held": True, "state": "PENDING"}),
        ({"Restarts": ""}, {"restarts": 0}),
        ({"NumNodes": ""}, {"least_nodes": 1}),
    ],
)
def test_a_line_of_scontrol_in_its_variants(changed: dict[str, str], expected: dict[str, Any]) -> None:
    job = text_job(**changed)
    assert {key: getattr(job, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"JobId": "x"}, "JobId: 'x' is no count"),
        ({"TimeLimit": "30"}, "TimeLimit: '30' is no"),
        ({"StartTime": "soon"}, "StartTime: 'soon' is no date"),
        ({"NodeList": "n["}, "NodeList"),
    ],
)
def test_a_line_of_scontrol_that_is_wrong_is_named(changed: dict[str, str], said: str) -> None:
    with pytest.raises(BackendError, match=f"line 1: {said}"):
        text_job(**changed)


def test_marks_of_old_releases_on_a_node_s_state_are_no_part_of_it() -> None:
    told = parse_text.nodes("NodeName=n1 State=IDLE*+DRAIN Gres=gpu:8 Reason=fan is bad [root@2023-05-04T03:02:01]")
    assert told["n1"].states == {"IDLE", "DRAIN", "NOT_RESPONDING"}
    assert (told["n1"].reason, told["n1"].reason_user, told["n1"].weight) == ("fan is bad", "root", 1)
    plain = parse_text.nodes("NodeName=n1 State=IDLE~ Weight=5")["n1"]
    assert (plain.states, plain.weight, plain.reason_user) == ({"IDLE"}, 5, "")


def json_job(**changed: Any) -> SlurmJob:
    fields = {"job_id": 7, "job_state": "RUNNING", "nodes": "n[1-2]", "start_time": 500, "time_limit": 3}
    return parse_json.jobs(json.dumps({"jobs": [fields | changed]}).encode())[7]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, {"time_limit_seconds": 180.0, "started_seconds": 500.0, "restarts": 0, "least_nodes": 1, "held": False}),
        ({"time_limit": {"set": True, "infinite": True, "number": 5}}, {"time_limit_seconds": None}),
        ({"time_limit": {"set": False, "infinite": False, "number": 5}}, {"time_limit_seconds": None}),
        ({"time_limit": {"number": 5}}, {"time_limit_seconds": 300.0}),
        ({"job_state": "PENDING"}, {"started_seconds": 0.0}),
        ({"priority": 0}, {"held": True}),
        ({"job_state": ["SPECIAL_EXIT"]}, {"held": True, "state": "PENDING"}),
        ({"exit_code": 256 * 3}, {"exit_code": 3}),
        ({"exit_code": 9}, {"exit_code": 137}),
        (
            {"exit_code": {"return_code": {"set": True, "number": 3}, "signal": {"id": {"set": False}}}},
            {"exit_code": 3},
        ),
        ({"exit_code": {"return_code": 0, "signal": {"id": {"set": True, "number": 15}}}}, {"exit_code": 143}),
        ({"exit_code": {"return_code": 0, "signal_id": 9}}, {"exit_code": 137}),
        ({"exit_code": {}}, {"exit_code": None}),
        ({"requeue": 1, "batch_flag": False}, {"requeue": True, "batch": False}),
        ({"requeue": {"set": True, "number": 1}}, {"requeue": True}),
        ({"requeue": {"set": True, "number": 0}}, {"requeue": False}),
        ({"state_reason": "None"}, {"reason": ""}),
    ],
)
def test_a_job_of_squeue_in_its_variants(changed: dict[str, Any], expected: dict[str, Any]) -> None:
    job = json_job(**changed)
    assert {key: getattr(job, key) for key in expected} == expected


def test_an_answer_that_says_that_it_failed_is_no_answer() -> None:
    with pytest.raises(BackendError, match="Slurm says: Socket timed out; no more"):
        parse_json.jobs(json.dumps({"errors": [{"error": "Socket timed out"}, "no more"], "jobs": []}).encode())
    with pytest.raises(BackendError, match="no object"):
        parse_json.jobs(b"[]")
    with pytest.raises(BackendError, match="no list named 'nodes'"):
        parse_json.nodes(b'{"jobs": []}')
    for wrong in (["gpu:8", 3], "gpu:8"):
        with pytest.raises(BackendError, match="gres_detail: expected a list of strings"):
            json_job(gres_detail=wrong)
    with pytest.raises(BackendError, match=r"nodes\[1\]\.name: it is absent"):
        parse_json.nodes(b'{"nodes": [{"name": "a", "state": "idle"}, {"state": "idle"}]}')


# --- the commands as child processes ---------------------------------------------------------------------------------


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def commands_of(folder: Path, **settings: Any) -> Commands:
    return Commands(str(folder), **{"timeout_seconds": 10.0, **settings})


@pytest.mark.parametrize(
    ("release", "text", "jobs", "nodes"),
    [
        ("20.11.9", False, "scontrol --oneliner --details show jobs", "scontrol --oneliner show nodes"),
        ("21.08.0", False, "squeue --json", "sinfo --json"),
        ("22.05.8", False, "squeue --json", "sinfo --json"),
        ("22.05.8", True, "scontrol --oneliner --details show jobs", "scontrol --oneliner show nodes"),
        ("23.02.1", False, "squeue --json", "scontrol show nodes --json"),
        ("24.11.0-0rc1", False, "squeue --json", "scontrol show nodes --json"),
    ],
)
def test_each_release_is_asked_in_the_form_that_it_knows(
    bin_folder: Path, tmp_path: Path, release: str, text: bool, jobs: str, nodes: str
) -> None:
    asked = tmp_path / "asked"
    for name in ("squeue", "sinfo", "scontrol"):
        program(
            bin_folder,
            name,
            f'[ "$1" = --version ] && exec echo slurm {release}\necho {name} "$@" >> {asked}\n'
            f'case "$*" in *json*) [ $1 = --json -a {name} = squeue ] && exec cat {RECORDED}/squeue.json;'
            f" exec cat {RECORDED}/sinfo.json;; *jobs*) exec cat {RECORDED}/jobs.txt;; esac\n"
            f"exec cat {RECORDED}/nodes.txt",
        )
    slurm = commands_of(bin_folder, text=text)

    async def both() -> tuple[int, int]:
        return len(await slurm.jobs()), len(await slurm.nodes())

    assert asyncio.run(both()) == (len(parse_json.jobs((RECORDED / "squeue.json").read_bytes())), 4)
    assert asked.read_text().splitlines() == [jobs, nodes]
    assert slurm.requests == 2, "its version a program knows by itself"


def test_a_program_that_names_no_release_is_refused(bin_folder: Path) -> None:
    program(bin_folder, "sinfo", "echo no version here")
    with pytest.raises(BackendError, match="names no release"):
        asyncio.run(commands_of(bin_folder).version())


def test_a_command_that_fails_says_why_and_one_that_is_absent_too(bin_folder: Path) -> None:
    program(bin_folder, "scontrol", "echo lost; echo 'it is\n  wrong' >&2; exit 3")
    with pytest.raises(BackendError, match=r"scontrol a b: exit code 3: it is wrong$"):
        asyncio.run(commands_of(bin_folder).run("scontrol", "a", "b", "c"))
    with pytest.raises(BackendError, match=r"absent: .*No such file"):
        asyncio.run(commands_of(bin_folder).run("absent"))


def test_a_command_is_killed_with_all_that_it_started_when_its_time_is_up(bin_folder: Path, tmp_path: Path) -> None:
    child = tmp_path / "child"
    program(bin_folder, "scontrol", f"sleep 100 & echo $! > {child}; wait")
    with pytest.raises(BackendError, match=r"no end within 0\.5 s; it was killed"):
        asyncio.run(commands_of(bin_folder, timeout_seconds=0.5).run("scontrol"))
    pid = int(child.read_text())
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and is_running(pid):
        time.sleep(0.02)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_output_without_end_is_not_taken_in(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MOST_OUTPUT_BYTES", 1000)
    program(bin_folder, "squeue", "head -c 1000 /dev/zero")
    assert len(asyncio.run(commands_of(bin_folder).run("squeue"))) == 1000
    program(bin_folder, "squeue", "head -c 1001 /dev/zero")
    with pytest.raises(BackendError, match="more than 1000 bytes of output"):
        asyncio.run(commands_of(bin_folder).run("squeue"))


def test_what_is_given_is_read_and_the_environment_is_slurm_s(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_TIME_FORMAT", "%s")
    program(bin_folder, "sbatch", 'cat; echo "$LC_ALL ${SLURM_CONF} ${SLURM_TIME_FORMAT-none}"')
    told = asyncio.run(commands_of(bin_folder, configuration="/etc/x.conf").run("sbatch", given="a script\n"))
    assert told == b"a script\nC /etc/x.conf none\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", None),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", "Unable to contact"),
        (f"exec cat {RECORDED}/jobs.txt", r"tells of \[1, 2, 3\] instead"),
    ],
)
def test_a_job_that_slurm_has_forgotten_is_none_and_no_answer_is_no_job(
    bin_folder: Path, script: str, said: str | None
) -> None:
    program(bin_folder, "scontrol", script)
    asked = commands_of(bin_folder).job(99)
    if said is None:
        assert asyncio.run(asked) is None
    else:
        with pytest.raises(BackendError, match=said):
            asyncio.run(asked)


def test_one_job_and_its_script(bin_folder: Path) -> None:
    program(bin_folder, "scontrol", f'[ "$1" = write ] && exec echo "script of $3"; exec cat {RECORDED}/jobs.txt')
    job = asyncio.run(commands_of(bin_folder).job(2))
    assert job is not None and job.number == 2
    assert asyncio.run(commands_of(bin_folder).script(2)) == "script of 2\n"
    program(bin_folder, "scontrol", "exit 1")
    assert asyncio.run(commands_of(bin_folder).script(2)) == ""


def test_the_programs_that_are_missing_are_named(bin_folder: Path) -> None:
    for name in ("squeue", "sinfo", "scontrol", "scancel"):
        program(bin_folder, name, "")
    path = f"/nowhere{os.pathsep}{bin_folder}"
    assert programs({"PATH": path}) == ["sbatch"]
    program(bin_folder, "sbatch", "")
    (bin_folder / "sinfo").chmod(0o644)
    assert programs({"PATH": path}) == ["sinfo"]


# --- hands -----------------------------------------------------------------------------------------------------------


def test_a_change_and_its_failure_each_leave_a_line(bin_folder: Path, tmp_path: Path) -> None:
    program(bin_folder, "scontrol", '[ "$1" = bad ] && { echo no >&2; exit 1; }\necho "did $1"')
    audit = Audit(tmp_path / "audit.jsonl", ManualClock())
    looks: list[tuple[int, SlurmJob | None]] = []
    hands = Hands(commands_of(bin_folder), audit, tmp_path / "touched.json", lambda *seen: looks.append(seen))
    assert asyncio.run(hands.do("drain", "n1", ("scontrol", "good"), "why", "v-1", ("e",))) == "did good\n"
    with pytest.raises(BackendError):
        asyncio.run(hands.do("drain", "n2", ("scontrol", "bad"), "why"))
    first, second = lines(audit.path)
    assert (first.outcome, first.verdict, first.evidence, first.command) == (
        "done",
        "v-1",
        ("e",),
        ("scontrol", "good"),
    )
    assert (second.target, second.outcome) == ("n2", "failed: scontrol bad: exit code 1: no")
    program(bin_folder, "scontrol", "echo Invalid job id >&2; exit 1")
    assert asyncio.run(hands.job(5)) is None
    assert looks == [(5, None)], "whoever keeps what was seen is told"


# --- wishes ----------------------------------------------------------------------------------------------------------


def verdict(name: str = "v-1", node: str = "n1", **changed: Any) -> Verdict:
    made = Verdict(name, Kind.STRAGGLER, "slurm-7", 0, 1, node, Cause.COMPUTE, 0.99, 1.5, 0.1, 0.15, 0, 1)
    return dataclasses.replace(made, **changed)


def state_of(mode: Mode = Mode.ACT) -> State:
    state = State(policy=Policy(mode=mode))
    state.nodes = {
        "n1": Node("n1", 8, state=NodeState.QUARANTINE, backoff=2, reason="slow", verdict_id="v-1", slowdown=1.5),
        "n2": Node("n2", 8),
        "n3": Node("n3", 8, state=NodeState.SUSPECT),
        "n4": Node("n4", 8, state=NodeState.PROBATION),
    }
    state.verdicts = {"v-1": verdict()}
    return state


def test_what_is_not_healthy_is_told_with_its_verdict_and_its_episode() -> None:
    state = state_of()
    wished = wishes.wishes_of(state)
    assert (wished.acts, wished.frozen, set(wished.nodes)) == (True, False, {"n1", "n3", "n4"})
    assert wished.known == {"n1", "n2", "n3", "n4"}
    assert (wished.advice, wished.moves) == ({}, {})
    one = wished.nodes["n1"]
    assert (one.why, one.episode, one.slowdown, one.verdict) == ("slow", "quarantine/2/v-1", 1.5, "v-1")
    assert one.evidence and not one.probed
    state.past_verdicts = [PastVerdict(state.verdicts.pop("v-1"), 5, "it cleared")]
    assert wishes.wishes_of(state).nodes["n1"].evidence == one.evidence, "a verdict that stands no more is remembered"
    state.past_verdicts = []
    assert wishes.wishes_of(state).nodes["n1"].evidence == ()


@pytest.mark.parametrize(("job_state", "probed"), [(JobState.RUNNING, True), (JobState.PENDING, False)])
def test_a_node_is_probed_while_its_probe_has_it(job_state: JobState, probed: bool) -> None:
    state = state_of()
    state.nodes["n1"].probe_job = "probe-n1-1"
    spec = JobSpec("probe-n1-1", ("x",), 8, kind=JobKind.PROBE)
    state.jobs["probe-n1-1"] = Job("probe-n1-1", spec, job_state, 0)
    assert wishes.wishes_of(state).nodes["n1"].probed is probed


def test_the_next_attempt_keeps_away_from_what_it_left_and_what_is_in_doubt() -> None:
    state = state_of()
    assert wishes.avoided_by(state, "slurm-7") == ("n1", "n3"), "not from one on probation"
    job = Job("slurm-7", JobSpec("j", ("x",), 8), JobState.PENDING, 0, excluded_nodes=("n9", "n3"))
    state.jobs["slurm-7"] = job
    assert wishes.avoided_by(state, "slurm-7") == ("n1", "n3", "n9")


def test_advice_names_accused_nodes_and_moves_that_would_be_made() -> None:
    state = state_of(Mode.OBSERVE)
    state.verdicts["v-2"] = verdict("v-2", "n2", kind=Kind.INTERFERENCE)
    state.verdicts["v-3"] = verdict("v-3", "gone")
    for name, kind, job_state, attempt in (
        ("slurm-7", JobKind.HOSTED, JobState.RUNNING, 1),
        ("slurm-8", JobKind.HOSTED, JobState.COMPLETED, 1),
        ("j-000001", JobKind.TRAINING, JobState.RUNNING, 1),
        ("slurm-9", JobKind.HOSTED, JobState.RUNNING, 2),
    ):
        spec = JobSpec(name, ("x",), 8, kind=kind)
        state.jobs[name] = Job(name, spec, job_state, 0, attempt=attempt)
        state.decisions.append(Decision(f"d-{name}", name, "v-1", 0, False, 12.4, 1.5, 3.0, attempt=1))
    wished = wishes.wishes_of(state)
    assert set(wished.advice) == {"n1"}, "interference accuses no node, and one that is gone can't be drained"
    advised = wished.advice["n1"]
    assert (advised.state, advised.episode, advised.verdict) == (NodeState.QUARANTINE, "v-1", "v-1")
    assert wished.moves == {"slurm-7": "v-1: moving is expected to gain 12 s"}
    state.decisions[0].applied = True
    assert wishes.wishes_of(state).moves == {}


def test_the_strongest_evidence_comes_first_and_no_more_than_is_read() -> None:
    told = tuple(
        Evidence(f"m{ratio}", float(number), 1.0, "s", "peers", log_likelihood_ratio=ratio)
        for number, ratio in enumerate((1.0, -9.0, 4.0, 2.0, 3.0))
    )
    _, *facts = wishes.evidence_of(verdict(evidence=told))
    assert [fact.split()[0] for fact in facts] == ["m-9.0", "m4.0", "m3.0", "m2.0"]
    assert wishes.evidence_of(None) == ()
