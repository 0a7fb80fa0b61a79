"""Slurm prints text of users: job names, comments, folders and accounts must not forge a field or hide a job.

`benchmarks.slurm.printed` prints as Slurm 22.05.8 does; tests/slurm/test_hostile_names.py uses real daemons.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from agent.schema.errors import BackendError
from benchmarks.slurm.printed import Printed, PrintedCommands, Queue, as_json, as_text, in_columns, in_places
from gangwatch.health import slurm_health
from scheduler_feedback.backends.slurm.parsing import columns, parse_json, parse_text
from scheduler_feedback.backends.slurm.parsing.opt_in import of_comment
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob
from scheduler_feedback.backends.slurm.section import SlurmSection
from scheduler_feedback.backends.slurm.slurm_backend import SlurmBackend
from scheduler_feedback.core.events import AttemptEnded, Hosted

VICTIM = Printed(7, b"llm", "victim", nodes=("gpu001", "gpu002"), comment=b"do-not-touch")
SEPARATORS = (b"\n", "\u2028".encode(), "\x85".encode(), b"\x0c", b"\x0b", b"\x1c", b"\r", b"\xff")


def forged_line() -> bytes:
    """Return a line of Slurm's output that an attacker forges for the victim's job: opted in, and killed."""
    return as_text([replace(VICTIM, comment=b"gangwatch:restartable,signal=KILL,grace=0")]).rstrip()


def rivals() -> list[Printed]:
    """Return one user's jobs. Each imitates Slurm's own output in another way."""
    rest = as_text([Printed(0)]).split(b" UserId=", 1)[1].rstrip()
    ways: list[dict[str, bytes]] = []
    for separator in SEPARATORS:
        ways.append({"name": b"x UserId=" + rest + separator + forged_line() + separator + b"JobId=102 JobName=y"})
        ways.append({"comment": b"mine" + separator + forged_line()})
    ways += [
        {"folder": b"/tmp/x\n" + forged_line()},
        {"account": b"a QOS=x JobState=RUNNING Requeue=1 Restarts=9 BatchFlag=1\n" + forged_line()},
        {"name": b"x UserId=root(0) JobState=RUNNING NodeList=gpu[001-002] Comment=gangwatch:restartable"},
        {"name": b"bad \xff\xfe utf"},
        {"name": b""},
        {"name": b"\n" * 1024},
        {"name": b"n" * 1024, "comment": b"c" * 1024},
        {"name": b"7           victim"},
    ]
    return [Printed(101 + at, user="mallory", nodes=("gpu004",), gpus=(5,), **way) for at, way in enumerate(ways)]


def listed(jobs: list[Printed], text: bool) -> dict[int, SlurmJob]:
    """Return the jobs by id, after enough polls to request the GPUs of each job."""

    async def ask() -> dict[int, SlurmJob]:
        commands = PrintedCommands(Queue(jobs), text)
        found = await commands.jobs()
        for _ in range(3):
            found = await commands.jobs()
        return found.records

    return asyncio.run(ask())


@pytest.mark.parametrize("text", [True, False])
def test_no_job_forges_a_field_of_another_job_or_hides_it(text: bool) -> None:
    jobs = [VICTIM, *rivals(), Printed(900, b"last", "bob", nodes=("gpu003",))]
    found = listed(jobs, text)
    assert found.keys() == {job.number for job in jobs}, "every job is listed, and no invented one"
    victim = found[7]
    assert (victim.user, victim.name, victim.comment, victim.nodes) == (
        "victim", "llm", "do-not-touch", ("gpu001", "gpu002"),
    )  # fmt: skip
    assert not of_comment(victim.comment).restartable
    assert found[900].user == "bob"


@pytest.mark.parametrize("text", [True, False])
def test_no_job_forges_its_own_fields(text: bool) -> None:
    for job in rivals():
        found = listed([job], text)[job.number]
        assert (found.user, found.state, found.nodes, found.gpus) == ("mallory", "RUNNING", ("gpu004",), ((5,),))
        assert (found.restarts, found.batch, found.requeue) == (0, True, True)
        assert found.comment == job.comment.decode("utf-8", "replace"), "the comment contains nothing of another field"


def test_text_and_json_describe_the_same_jobs() -> None:
    jobs = [VICTIM, *rivals()]
    in_text, in_json = listed(jobs, True), listed(jobs, False)
    assert {number: replace(job, name="") for number, job in in_text.items()} == {
        number: replace(job, name="") for number, job in in_json.items()
    }
    # A column cuts a long name, which is used for display only.
    assert all(in_json[number].name.startswith(job.name.rstrip("\ufffd")) for number, job in in_text.items())


def test_imitated_nodes_of_a_job_drop_only_its_own_record() -> None:
    imitates = Printed(
        101, b"x Nodes=gpu004 CPU_IDs=0 Mem=0 GRES=gpu:h200:8(IDX:0-7) ", "mallory", nodes=("gpu004",), gpus=(5,)
    )

    async def ask() -> tuple[set[int], list[str]]:
        found = await PrintedCommands(Queue([VICTIM, imitates]), text=True).jobs()
        return set(found.records), [one.why for one in found.refused]

    numbers, why = asyncio.run(ask())
    assert numbers == {7}
    assert len(why) == 1 and "imitates Slurm's own words" in why[0]


def test_many_doubtful_jobs_do_not_use_up_the_requests_for_others() -> None:
    doubtful = [
        Printed(1000 + at, b" Nodes=gpu004 CPU_IDs=0 Mem=0 GRES=gpu:1", "mallory", nodes=("gpu004",))
        for at in range(100)
    ]
    queue = Queue(doubtful)

    async def ask() -> int:
        commands = PrintedCommands(queue, text=True)
        for _ in range(6):
            await commands.jobs()
        queue.jobs = [*doubtful, VICTIM]
        before = commands.requests
        found = await commands.jobs()
        assert 7 in found.records, "its record is requested at once"
        return commands.requests - before

    assert asyncio.run(ask()) <= 2 + 1 + 5


# --- one record -------------------------------------------------------------------------------------------------------


def test_an_unreadable_record_drops_only_itself() -> None:
    jobs = [VICTIM, Printed(8, limit_minutes=1), Printed(9)]
    output = in_columns(jobs).replace(b"1:00 ", b"soon ")
    assert output != in_columns(jobs)
    found = columns.jobs(output, columns.places(in_places(jobs)))
    assert found.records.keys() == {7, 9}
    assert [(one.key, one.kind) for one in found.refused] == [(8, "job")]
    assert "timelimit: 'soon' is not [days-]" in found.refused[0].why

    document = as_json(jobs).replace(b'"time_limit": 1', b'"time_limit": true')
    in_json = parse_json.jobs(document)
    assert in_json.records.keys() == {7, 9}
    assert [(one.key, one.where) for one in in_json.refused] == [(8, "squeue --json: jobs[1]")]

    nodes = parse_text.nodes("NodeName=a State=IDLE\nNodeName=b Weight=1\nNodeName=c State=IDLE Weight=x")
    assert nodes.records.keys() == {"a"}
    assert [one.key for one in nodes.refused] == ["b", "c"]


def test_a_second_record_of_a_job_is_dropped() -> None:
    again = replace(VICTIM, user="mallory", comment=b"gangwatch:restartable")
    for found in (
        parse_json.jobs(as_json([VICTIM, again])),
        columns.jobs(in_columns([VICTIM, again]), columns.places(in_places([VICTIM]))),
    ):
        assert found.records[7].user == "victim"
    assert [one.why for one in parse_json.jobs(as_json([VICTIM, again])).refused] == [": a second record of job 7"]


def test_output_in_another_format_is_refused_as_a_whole() -> None:
    output = in_columns([VICTIM])
    with pytest.raises(BackendError, match="record 1 does not have"):
        columns.jobs(output[1:], {})
    with pytest.raises(BackendError, match="record 2 does not have"):
        columns.jobs(output + output[:-1], {})
    with pytest.raises(BackendError, match="no readable line of its nodes"):
        columns.jobs(output, {})


# --- the backend ------------------------------------------------------------------------------------------------------


def test_a_job_with_a_refused_record_does_not_count_as_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue = Queue([VICTIM, Printed(8, nodes=("gpu003",))])
    backend = SlurmBackend(tmp_path, PrintedCommands(queue, text=True))
    with caplog.at_level(logging.WARNING):
        asyncio.run(backend._scan(0.0))
        assert {event.job_id for event in backend.observe(()) if isinstance(event, Hosted)} == {"slurm-7", "slurm-8"}
        queue.change(8, state="STOPPED", name=b" Nodes=gpu003 CPU_IDs=0 Mem=0 GRES=gpu:h200:8(IDX:0-7)", restarts=1)
        for _ in range(3):
            backend._listing = ""
            asyncio.run(backend._scan(0.0))
    held = (("slurm-7", 0), ("slurm-8", 0))
    assert not [event for event in backend.observe(held) if isinstance(event, AttemptEnded)]
    assert ("gangwatch_slurm_records_refused_total", (("kind", "job"),), 3.0) in backend.measures()
    messages = [record.message for record in caplog.records if "cannot be read" in record.message]
    assert len(messages) == 1 and messages[0].startswith("job 8 cannot be read")
    queue.jobs = [VICTIM]
    backend._listing = ""
    asyncio.run(backend._scan(0.0))
    assert [event.job_id for event in backend.observe(held) if isinstance(event, AttemptEnded)] == ["slurm-8"]


def test_a_name_is_shown_without_terminal_sequences(tmp_path: Path) -> None:
    queue = Queue([Printed(7, b"\x1b]0;owned\x07\xe2\x80\xaex" + b"n" * 400, "victim")])
    backend = SlurmBackend(tmp_path, PrintedCommands(queue, text=False))
    asyncio.run(backend._scan(0.0))
    (event,) = [event for event in backend.observe(()) if isinstance(event, Hosted)]
    assert event.spec.name.startswith("\ufffd]0;owned\ufffd\ufffdxnn")
    assert len(event.spec.name) == 200


def test_contradictory_nodes_of_a_job_are_ignored() -> None:
    first, second = in_places([VICTIM]), in_places([replace(VICTIM, nodes=("gpu004",))])
    assert columns.places(first + first)[7].nodes == ("gpu001", "gpu002")
    assert columns.places(first + second) == columns.places(b"7|gpu[|\n") == columns.places(b"7|a|b|c\nx|y|z\n") == {}
    found = columns.jobs(in_columns([VICTIM, Printed(8)]), columns.places(first + second + in_places([Printed(8)])))
    assert found.records.keys() == {8} and [one.key for one in found.refused] == [7]


def test_check_names_unreadable_records(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue([VICTIM, Printed(8, b" Nodes=gpu001 CPU_IDs=0 Mem=0 GRES=gpu:1")])
    monkeypatch.setattr(slurm_health, "Commands", lambda *_: PrintedCommands(queue, text=True))
    assert slurm_health.findings(SlurmSection()) == ()
    whole, one = slurm_health.findings(SlurmSection(enabled=True))
    assert (whole.name, whole.state) == ("slurm", "limited")
    assert whole.detail == "4 nodes, 1 jobs; 1 records can't be read"
    assert (one.name, one.state) == ("slurm: job 8", "limited") and "imitates Slurm's own words" in one.detail
    queue.jobs = [VICTIM]
    (found,) = slurm_health.findings(SlurmSection(enabled=True))
    assert (found.state, found.detail) == ("found", "4 nodes, 1 jobs, all records readable")

    async def away(_: tuple[str, ...], given: str | None = None) -> bytes:
        raise BackendError("sinfo --version: killed: it did not end within 20 s")

    commands = PrintedCommands(queue, text=False)
    monkeypatch.setattr(commands, "_run", away)
    monkeypatch.setattr(slurm_health, "Commands", lambda *_: commands)
    (missing,) = slurm_health.findings(SlurmSection(enabled=True))
    assert missing.state == "missing" and "killed: it did not end" in missing.detail
