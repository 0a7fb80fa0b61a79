"""Single functions of the Slurm backend: parsers, commands, records and queries. No Slurm needed."""

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
from scheduler_feedback.backends.slurm import cycle_queries, desired_state, slurm_commands
from scheduler_feedback.backends.slurm.agent_announcements import Announcements
from scheduler_feedback.backends.slurm.audited_commands import AuditedCommands
from scheduler_feedback.backends.slurm.parsing import columns, parse_json, parse_text
from scheduler_feedback.backends.slurm.parsing.gres import gpus_of, indices_of, wanted
from scheduler_feedback.backends.slurm.parsing.hostlist import MOST, expand
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob, SlurmNode, base_state
from scheduler_feedback.backends.slurm.slurm_audit import Audit, Line, lines
from scheduler_feedback.backends.slurm.slurm_commands import Commands, programs
from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.job import Job, JobKind, JobSpec, JobState
from scheduler_feedback.core.state import Decision, Mode, PastVerdict, Policy, State
from scheduler_feedback.core.verdict import Cause, Evidence, Kind, Verdict

RECORDED = Path(__file__).with_name("recorded") / "22.05.8"


# --- announcements ---------------------------------------------------------------------------------------------------


def records_in(folder: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in sorted(folder.iterdir())}


def test_each_slurm_node_has_a_record_and_a_removed_node_has_none(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    announced = Announcements(folder, "http://{node}.example:9400/{node}")
    announced.write(["n1", "n2"])
    assert records_in(folder) == {
        f"{name}.json": {"pid": 0, "start_time": 0, "node": name, "url": f"http://{name}.example:9400/{name}"}
        for name in ("n1", "n2")
    }
    (folder / "other.json").write_text("{}")  # a record of an agent
    announced.write(["n2", "n3"])
    assert set(records_in(folder)) == {"n2.json", "n3.json", "other.json"}


def test_a_written_record_is_not_written_again_and_a_failed_one_is(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    folder.write_text("no folder")
    announced = Announcements(folder, "http://{node}")
    announced.write(["n1"])
    folder.unlink()
    announced.write(["n1"])
    (folder / "n1.json").unlink()
    announced.write(["n1"])
    assert records_in(folder) == {}


# --- queries of the cycle --------------------------------------------------------------------------------------------


def answering(answer: Callable[[Future[Any]], None]) -> Any:
    def ask(question: Callable[[State], Any], /) -> Future[Any]:
        future: Future[Any] = Future()
        answer(future)
        return future

    return ask


def test_without_a_response_of_the_cycle_everything_is_frozen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cycle_queries, "ANSWER_SECONDS", 0.05)
    cycle = cycle_queries.Cycle()
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
    assert asyncio.run(cycle.frozen()), "it has not responded in time"
    assert time.monotonic() - began < 3.0


# --- audit -----------------------------------------------------------------------------------------------------------


def test_audit_lines_are_read_in_order_and_damaged_ones_skipped(tmp_path: Path) -> None:
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


def test_a_line_that_cannot_be_written_is_counted_and_stops_nothing(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "absent" / "actions.jsonl", ManualClock())
    audit.write("drain", "n1", "done")
    assert audit.counts == {("drain", "done"): 1}


# --- job states ------------------------------------------------------------------------------------------------------


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
def test_the_base_state_is_separated_from_flags(states: list[str], base: str) -> None:
    assert base_state(states) == base


@pytest.mark.parametrize(
    ("changed", "runs", "waits"),
    [
        ({}, True, False),
        ({"state": "SUSPENDED"}, True, False),
        ({"completing": True}, False, False),
        ({"state": "PENDING"}, False, True),
        ({"state": "PENDING", "completing": True}, False, False),  # requeued, and its processes have not ended yet
        ({"state": "COMPLETED"}, False, False),
    ],
)
def test_running_and_pending_states(changed: dict[str, Any], runs: bool, waits: bool) -> None:
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
def test_only_jobs_that_lack_nothing_but_nodes_wait_for_nodes(changed: dict[str, Any], room: bool) -> None:
    assert dataclasses.replace(SlurmJob(7, "PENDING"), **changed).waits_for_room is room


def test_every_drain_state_counts_as_drained() -> None:
    for states, drained in (({"IDLE", "DRAIN"}, True), ({"DRAINING"}, True), ({"DRAINED"}, True), ({"DOWN"}, False)):
        assert SlurmNode("n1", 8, states=frozenset(states)).drained is drained


# --- generic resources and host lists --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requested", "gpus"),
    [
        (("gres:gpu:6", "gres:gpu:8", "", "gres:gpu:1", 2, 16), 6),
        (("", "gres:gpu:h200:8", "", "gres:gpu:1", 2, 16), 16),
        (("", "", "", "gres:gpu:1", 2, 16), 16),
        (("", "", "gres:gpu:4", "", 2, 16), 8),
        (("gres/gpu=6", "", "", "", 2, 16), 6),
        (("gres:gpu", "", "", "", 2, 16), 1 * 0),  # a kind inside a longer word has no number
        (("", "", "", "", 2, 16), 0),
    ],
)
def test_the_total_of_requested_gpus(requested: tuple[str, str, str, str, int, int], gpus: int) -> None:
    assert wanted(*requested) == gpus


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
    with pytest.raises(ValueError, match="are not GPU indices"):
        indices_of("gpu:2(IDX:0-x)")


def test_a_host_list_has_a_largest_size_and_matching_brackets() -> None:
    assert len(expand(f"n[1-{MOST}]")) == MOST
    for wrong in (f"n[1-{MOST}],m", "n[[1-2]]", "n[1-2]]", "n[5-4]", "a b"):
        with pytest.raises(ValueError, match=r"host list|not a range|not a node name|neither a number"):
            expand(wrong)
    assert expand("n[3-3]") == ("n3",)


# --- the two forms of Slurm's output ---------------------------------------------------------------------------------


def columns_of(**changed: str) -> bytes:
    values = {
        "jobid": "7", "username": "eve", "state": "RUNNING", "restartcnt": "2", "requeue": "0", "batchflag": "1",
        "prioritylong": "10", "numnodes": "2", "numtasks": "4294967294", "partition": "batch",
        "timelimit": "1-02:03:04", "starttime": "2023-05-04T03:02:01", "eligibletime": "Unknown",
        "submittime": "2023-05-04T03:02:00", "reason": "None", "tres-per-job": "N/A", "tres-per-node": "gres:gpu:4",
        "tres-per-socket": "N/A", "tres-per-task": "N/A", "name": "x", "comment": "(null)", "exit_code": "0",
    } | {key.replace("_per_", "-per-"): value for key, value in changed.items()}  # fmt: skip
    return "".join(values[name].ljust(width) for name, width in columns.COLUMNS).encode() + b"\n"


def columns_job(**changed: str) -> SlurmJob:
    return columns.jobs(columns_of(**changed), {7: columns.Place(("n1", "n2"), ("n3",))}).records[7]


def test_a_record_of_columns_gives_times_counts_and_flags() -> None:
    job = columns_job()
    assert (job.time_limit_seconds, job.restarts, job.least_nodes) == (93784.0, 2, 2)
    assert (job.user, job.batch, job.requeue, job.exit_code, job.begins_seconds) == ("eve", True, False, 0, 0.0)
    assert (job.started_seconds, job.submitted_seconds) == (1683169321.0, 1683169320.0)
    assert (job.nodes, job.gpus, job.excluded, job.gpus_wanted) == (("n1", "n2"), ((), ()), ("n3",), 8)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"exit_code": "768"}, {"exit_code": 3}),
        ({"exit_code": "9"}, {"exit_code": 137}),
        ({"exit_code": "3:0"}, {"exit_code": 3}),
        ({"exit_code": "0:9"}, {"exit_code": 137}),
        ({"exit_code": "4294967294"}, {"exit_code": None}),
        ({"timelimit": "UNLIMITED"}, {"time_limit_seconds": None}),
        ({"timelimit": "30:00"}, {"time_limit_seconds": 1800.0}),
        ({"timelimit": "2:30:00"}, {"time_limit_seconds": 9000.0}),
        ({"state": "PENDING"}, {"nodes": (), "started_seconds": 0.0}),
        ({"state": "COMPLETING"}, {"state": "COMPLETED", "completing": True}),
        ({"prioritylong": "0"}, {"held": True}),
        ({"state": "SPECIAL_EXIT"}, {"held": True, "state": "PENDING"}),
        ({"restartcnt": "4294967294"}, {"restarts": 0}),
        ({"numnodes": ""}, {"least_nodes": 1}),
        ({"tres_per_node": "N/A", "tres_per_task": "gres:gpu:2", "numtasks": "3"}, {"gpus_wanted": 6}),
        ({"tres_per_node": "N/A", "tres_per_socket": "gres:gpu:2"}, {"gpus_wanted": 4}),
        ({"comment": "c" * 1024}, {"comment": "c" * 1024}),
    ],
)
def test_variants_of_a_record_of_columns(changed: dict[str, str], expected: dict[str, Any]) -> None:
    job = columns_job(**changed)
    assert {key: getattr(job, key) for key in expected} == expected


def test_a_record_without_its_last_column_is_read() -> None:
    """squeue 26.05 prints nothing, not even blanks, as the exit code of a job that has none."""
    short = columns_of().rstrip(b"\n")[: -columns.COLUMNS[-1][1]] + b"\n"
    both = columns.records(short + columns_of(jobid="8") + short)
    assert [(record[:12].strip(), len(record)) for record in both] == [
        (number, columns.RECORD_BYTES) for number in (b"7", b"8", b"7")
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"jobid": "x"}, "jobid: 'x' is not a count"),
        ({"jobid": "4294967294"}, "jobid: '4294967294' is not a count"),
        ({"state": ""}, "state: the value is missing"),
        ({"timelimit": "30"}, "timelimit: '30' is no"),
        ({"starttime": "soon"}, "starttime: 'soon' is not a date"),
        ({"exit_code": "bad"}, "exit_code: 'bad' is not an exit code"),
        ({"comment": "c" * 1025}, "comment: longer than 1024 bytes"),
    ],
)
def test_an_invalid_column_is_named(changed: dict[str, str], message: str) -> None:
    with pytest.raises(BackendError, match=f"record 1: {message}"):
        columns_job(**changed)


def test_the_gpus_of_a_job_are_those_listed_for_its_nodes() -> None:
    text = "JobId=7 JobName=x   Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpu:h200:3(IDX:0-1,6) MinCPUsNode=1"
    assert parse_text.gpus_of_job(text, ("n1", "n2")) == ((0, 1, 6), (0, 1, 6))
    assert parse_text.gpus_of_job(text, ("n1",)) == ((0, 1, 6),)
    assert parse_text.gpus_of_job(text, ("n1", "n3")) is None, "one node is not listed"
    assert parse_text.gpus_of_job(f"{text} Nodes=n2 CPU_IDs= Mem= GRES=gpu:1", ("n1", "n2")) is None, (
        "one node is listed twice"
    )
    assert parse_text.gpus_of_job(text.replace("0-1,6", "0-x"), ("n1", "n2")) is None
    with pytest.raises(ValueError, match="a node has at most 1024"):
        indices_of("gpu:1025")
    assert len(indices_of("gpu:1024")) == 1024


def test_flags_of_old_releases_are_separated_from_a_node_s_state() -> None:
    result = parse_text.nodes("NodeName=n1 State=IDLE*+DRAIN Gres=gpu:8 Reason=fan is bad [root@2023-05-04T03:02:01]")
    assert result.records["n1"].states == {"IDLE", "DRAIN", "NOT_RESPONDING"}
    assert (result.records["n1"].reason, result.records["n1"].weight) == ("fan is bad", 1)
    plain = parse_text.nodes("NodeName=n1 State=IDLE~ Weight=5").records["n1"]
    assert (plain.states, plain.weight) == ({"IDLE"}, 5)


def json_job(**changed: Any) -> SlurmJob:
    fields = {"job_id": 7, "job_state": "RUNNING", "nodes": "n[1-2]", "start_time": 500, "time_limit": 3}
    return parse_json.jobs(json.dumps({"jobs": [fields | changed]}).encode()).records[7]


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
def test_variants_of_a_job_of_squeue(changed: dict[str, Any], expected: dict[str, Any]) -> None:
    job = json_job(**changed)
    assert {key: getattr(job, key) for key in expected} == expected


def test_a_document_with_errors_is_refused() -> None:
    with pytest.raises(BackendError, match="Slurm reports: Socket timed out; no more"):
        parse_json.jobs(json.dumps({"errors": [{"error": "Socket timed out"}, "no more"], "jobs": []}).encode())
    with pytest.raises(BackendError, match="not an object"):
        parse_json.jobs(b"[]")
    with pytest.raises(BackendError, match="no list named 'nodes'"):
        parse_json.nodes(b'{"jobs": []}')
    for wrong in (["gpu:8", 3], "gpu:8"):
        with pytest.raises(BackendError, match="gres_detail: expected a list of strings"):
            json_job(gres_detail=wrong)
    with pytest.raises(BackendError, match=r"nodes\[0\]\.name: the value is missing"):
        parse_json.nodes(b'{"nodes": [{"state": "idle"}]}')
    with pytest.raises(BackendError, match="Slurm reports: it is down"):
        parse_json.nodes(b'{"errors": "it is down", "nodes": []}')


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


_SQUEUE = "squeue --noheader --all --states=all --"
IN_COLUMNS = "|".join(
    (
        f"{_SQUEUE}Format={columns.FORMAT}",
        f"{_SQUEUE}format={columns.PLACES_FORMAT.replace('|', ' ')}",
        "scontrol --oneliner --details show job 1",
        "scontrol --oneliner --details show job 6",
    )
)


@pytest.mark.parametrize(
    ("release", "text", "jobs", "nodes"),
    [
        ("20.11.9", False, IN_COLUMNS, "scontrol --oneliner show nodes"),
        ("21.08.0", False, "squeue --json", "sinfo --json"),
        ("22.05.8", False, "squeue --json", "sinfo --json"),
        ("22.05.8", True, IN_COLUMNS, "scontrol --oneliner show nodes"),
        ("23.02.1", False, "squeue --json", "scontrol show nodes --json"),
        ("24.11.0-0rc1", False, "squeue --json", "scontrol show nodes --json"),
    ],
)
def test_each_release_gets_the_commands_that_it_supports(
    bin_folder: Path, tmp_path: Path, release: str, text: bool, jobs: str, nodes: str
) -> None:
    requested = tmp_path / "asked"
    for name in ("squeue", "sinfo", "scontrol"):
        program(
            bin_folder,
            name,
            f'[ "$1" = --version ] && exec echo slurm {release}\necho {name} "$@" >> {requested}\n'
            f'case "$*" in *json*) [ $1 = --json -a {name} = squeue ] && exec cat {RECORDED}/squeue.json;'
            f" exec cat {RECORDED}/sinfo.json;; *Format*) exec cat {RECORDED}/columns.txt;;"
            f" *format*) exec cat {RECORDED}/places.txt;; *show*job*) shift 4; exec cat {RECORDED}/job$1.txt;; esac\n"
            f"exec cat {RECORDED}/nodes.txt",
        )
    slurm = commands_of(bin_folder, text=text)

    async def both() -> tuple[int, int]:
        return len((await slurm.jobs()).records), len((await slurm.nodes()).records)

    assert asyncio.run(both()) == (len(parse_json.jobs((RECORDED / "squeue.json").read_bytes()).records), 4)
    requests = [*jobs.split("|"), nodes]
    assert requested.read_text().replace("|", " ").splitlines() == requests
    assert slurm.requests == len(requests), "a program prints its version without a request"


def test_a_users_environment_does_not_change_the_output(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SQUEUE_USERS", "SINFO_SORT", "SLURM_TIME_FORMAT", "LC_ALL", "TZ"):
        monkeypatch.setenv(name, "mine")
    program(bin_folder, "squeue", "env")
    seen = asyncio.run(commands_of(bin_folder).run("squeue")).decode().split("\n")
    assert {"TZ=UTC", "LC_ALL=C"} <= set(seen)
    assert not [line for line in seen if line.startswith(("SQUEUE_", "SINFO_", "SLURM_TIME_FORMAT"))]


def test_output_without_a_release_number_is_refused(bin_folder: Path) -> None:
    program(bin_folder, "sinfo", "echo no version here")
    with pytest.raises(BackendError, match="has no release number"):
        asyncio.run(commands_of(bin_folder).version())


def test_errors_of_failed_and_missing_commands_give_the_reason(bin_folder: Path) -> None:
    program(bin_folder, "scontrol", "echo lost; echo 'it is\n  wrong' >&2; exit 3")
    with pytest.raises(BackendError, match=r"scontrol a b: exit code 3: it is wrong$"):
        asyncio.run(commands_of(bin_folder).run("scontrol", "a", "b", "c"))
    with pytest.raises(BackendError, match=r"absent: .*No such file"):
        asyncio.run(commands_of(bin_folder).run("absent"))


def test_a_command_is_killed_with_its_children_at_its_time_limit(bin_folder: Path, tmp_path: Path) -> None:
    child = tmp_path / "child"
    program(bin_folder, "scontrol", f"sleep 100 & echo $! > {child}; wait")
    with pytest.raises(BackendError, match=r"killed: it did not end within 0\.5 s"):
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


def test_endless_output_is_refused(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_commands, "MOST_OUTPUT_BYTES", 1000)
    program(bin_folder, "squeue", "head -c 1000 /dev/zero")
    assert len(asyncio.run(commands_of(bin_folder).run("squeue"))) == 1000
    program(bin_folder, "squeue", "head -c 1001 /dev/zero")
    with pytest.raises(BackendError, match="it printed more than 1000 bytes"):
        asyncio.run(commands_of(bin_folder).run("squeue"))


def test_standard_input_and_environment_of_commands(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_TIME_FORMAT", "%s")
    program(bin_folder, "sbatch", 'cat; echo "$LC_ALL ${SLURM_CONF} ${SLURM_TIME_FORMAT-none}"')
    result = asyncio.run(commands_of(bin_folder, configuration="/etc/x.conf").run("sbatch", given="a script\n"))
    assert result == b"a script\nC /etc/x.conf none\n"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", None),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", "Unable to contact"),
        (f"exec cat {RECORDED}/columns.txt", "no readable line of its nodes"),
        ("exit 0", "the job is not listed"),
    ],
)
def test_an_unknown_job_is_none_and_an_error_is_an_error(bin_folder: Path, script: str, message: str | None) -> None:
    program(bin_folder, "squeue", script)
    answer = commands_of(bin_folder).job(99)
    if message is None:
        assert asyncio.run(answer) is None
    else:
        with pytest.raises(BackendError, match=message):
            asyncio.run(answer)


def test_one_job_and_its_script(bin_folder: Path) -> None:
    program(bin_folder, "scontrol", f'[ "$1" = write ] && exec echo "script of $3"; exec cat {RECORDED}/job$5.txt')
    squeue = f"case $5 in --Format*) exec cat {RECORDED}/columns.txt;; esac; exec cat {RECORDED}/places.txt"
    program(bin_folder, "squeue", squeue)
    slurm = commands_of(bin_folder)
    job = asyncio.run(slurm.job(2))
    assert job is not None and job.number == 2
    for _ in range(2):
        job = asyncio.run(slurm.job(6))
        assert job is not None and job.gpus == ((3,),)
    assert slurm.requests == 2 + 3 + 2, "its GPUs are requested once per attempt"
    assert asyncio.run(commands_of(bin_folder).script(2)) == "script of 2\n"
    program(bin_folder, "scontrol", "exit 1")
    assert asyncio.run(commands_of(bin_folder).script(2)) == ""


def test_missing_programs_are_named(bin_folder: Path) -> None:
    for name in ("squeue", "sinfo", "scontrol", "scancel"):
        program(bin_folder, name, "")
    path = f"/nowhere{os.pathsep}{bin_folder}"
    assert programs({"PATH": path}) == ["sbatch"]
    program(bin_folder, "sbatch", "")
    (bin_folder / "sinfo").chmod(0o644)
    assert programs({"PATH": path}) == ["sinfo"]


# --- audited commands ------------------------------------------------------------------------------------------------


def test_a_change_and_its_failure_are_both_recorded(bin_folder: Path, tmp_path: Path) -> None:
    program(bin_folder, "scontrol", '[ "$1" = bad ] && { echo no >&2; exit 1; }\necho "did $1"')
    audit = Audit(tmp_path / "audit.jsonl", ManualClock())
    looks: list[tuple[int, SlurmJob | None]] = []
    commands = AuditedCommands(
        commands_of(bin_folder), audit, tmp_path / "touched.json", lambda *seen: looks.append(seen)
    )
    assert asyncio.run(commands.do("drain", "n1", ("scontrol", "good"), "why", "v-1", ("e",))) == "did good\n"
    with pytest.raises(BackendError):
        asyncio.run(commands.do("drain", "n2", ("scontrol", "bad"), "why"))
    first, second = lines(audit.path)
    assert (first.outcome, first.verdict, first.evidence, first.command) == (
        "done",
        "v-1",
        ("e",),
        ("scontrol", "good"),
    )
    assert (second.target, second.outcome) == ("n2", "failed: scontrol bad: exit code 1: no")
    program(bin_folder, "squeue", "echo Invalid job id >&2; exit 1")
    assert asyncio.run(commands.job(5)) is None
    assert looks == [(5, None)], "the callback gets the job"


# --- desired state ---------------------------------------------------------------------------------------------------


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


def test_unhealthy_nodes_have_a_verdict_and_an_episode() -> None:
    state = state_of()
    goals = desired_state.desired_state_of(state)
    assert (goals.acts, goals.frozen, set(goals.nodes)) == (True, False, {"n1", "n3", "n4"})
    assert goals.known == {"n1", "n2", "n3", "n4"}
    assert (goals.advice, goals.moves) == ({}, {})
    one = goals.nodes["n1"]
    assert (one.why, one.episode, one.slowdown, one.verdict) == ("slow", "quarantine/2/v-1", 1.5, "v-1")
    assert one.evidence and not one.probed
    state.past_verdicts = [PastVerdict(state.verdicts.pop("v-1"), 5, "it cleared")]
    assert desired_state.desired_state_of(state).nodes["n1"].evidence == one.evidence, "a cleared verdict is remembered"
    state.past_verdicts = []
    assert desired_state.desired_state_of(state).nodes["n1"].evidence == ()


@pytest.mark.parametrize(("job_state", "probed"), [(JobState.RUNNING, True), (JobState.PENDING, False)])
def test_a_node_is_being_probed_while_its_probe_runs(job_state: JobState, probed: bool) -> None:
    state = state_of()
    state.nodes["n1"].probe_job = "probe-n1-1"
    spec = JobSpec("probe-n1-1", ("x",), 8, kind=JobKind.PROBE)
    state.jobs["probe-n1-1"] = Job("probe-n1-1", spec, job_state, 0)
    assert desired_state.desired_state_of(state).nodes["n1"].probed is probed


def test_the_next_attempt_avoids_left_and_suspect_nodes() -> None:
    state = state_of()
    assert desired_state.avoided_by(state, "slurm-7") == ("n1", "n3"), "it does not avoid nodes on probation"
    job = Job("slurm-7", JobSpec("j", ("x",), 8), JobState.PENDING, 0, excluded_nodes=("n9", "n3"))
    state.jobs["slurm-7"] = job
    assert desired_state.avoided_by(state, "slurm-7") == ("n1", "n3", "n9")


def test_advice_names_accused_nodes_and_moves_that_would_be_made() -> None:
    state = state_of(Mode.OBSERVE)
    state.verdicts["v-2"] = verdict("v-2", "n2", kind=Kind.INTERFERENCE)
    state.verdicts["v-3"] = verdict("v-3", "gone")
    for name, kind, job_state, attempt in (
        ("slurm-7", JobKind.EXTERNAL, JobState.RUNNING, 1),
        ("slurm-8", JobKind.EXTERNAL, JobState.COMPLETED, 1),
        ("j-000001", JobKind.TRAINING, JobState.RUNNING, 1),
        ("slurm-9", JobKind.EXTERNAL, JobState.RUNNING, 2),
    ):
        spec = JobSpec(name, ("x",), 8, kind=kind)
        state.jobs[name] = Job(name, spec, job_state, 0, attempt=attempt)
        state.decisions.append(Decision(f"d-{name}", name, "v-1", 0, False, 12.4, 1.5, 3.0, attempt=1))
    goals = desired_state.desired_state_of(state)
    assert set(goals.advice) == {"n1"}, "interference accuses no node, and a removed node cannot be drained"
    advised = goals.advice["n1"]
    assert (advised.state, advised.episode, advised.verdict) == (NodeState.QUARANTINE, "v-1", "v-1")
    assert goals.moves == {"slurm-7": "v-1: moving is expected to gain 12 s"}
    state.decisions[0].applied = True
    assert desired_state.desired_state_of(state).moves == {}


def test_the_strongest_evidence_comes_first_up_to_a_limit() -> None:
    result = tuple(
        Evidence(f"m{ratio}", float(number), 1.0, "s", "peers", log_likelihood_ratio=ratio)
        for number, ratio in enumerate((1.0, -9.0, 4.0, 2.0, 3.0))
    )
    _, *facts = desired_state.evidence_of(verdict(evidence=result))
    assert [fact.split()[0] for fact in facts] == ["m-9.0", "m4.0", "m3.0", "m2.0"]
    assert desired_state.evidence_of(None) == ()
