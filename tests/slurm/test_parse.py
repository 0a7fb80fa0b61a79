"""Output of Slurm's commands: recorded from 22.05.8, converted to later releases' formats, and damaged.

Later releases could not be run. Their documents are made from the recorded ones according to SchedMD's sources
(src/plugins/data_parser/v0.0.39 and v0.0.40, parsers.c: UINT32_NO_VAL and TIMESTAMP_NO_VAL as objects of set, infinite
and number; states as lists of flags; lists for CSV_STRING).
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm.parsing import columns, parse_json, parse_text
from scheduler_feedback.backends.slurm.parsing.gres import gpus_of, indices_of
from scheduler_feedback.backends.slurm.parsing.hostlist import expand, join
from scheduler_feedback.backends.slurm.parsing.opt_in import OptIn, comment_of, of_comment, of_script
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob

RECORDED = Path(__file__).with_name("recorded") / "22.05.8"


def recorded(name: str) -> bytes:
    return (RECORDED / name).read_bytes()


def test_jobs_of_22_05() -> None:
    jobs = parse_json.jobs(recorded("squeue.json")).records
    first = jobs[1]
    assert (first.state, first.runs, first.nodes) == ("RUNNING", True, ("gpu001", "gpu002"))
    assert first.gpus == ((0, 1, 2), (0, 1, 2))
    assert (first.time_limit_seconds, first.restarts, first.batch, first.requeue) == (26 * 3600, 0, True, True)
    assert first.name == "a b=c"
    assert of_comment(first.comment) == OptIn(True, "USR1", False, 60.0, 30.0)
    second = jobs[2]
    assert (second.state, second.nodes, second.excluded, second.least_nodes) == ("PENDING", (), ("gpu004",), 3)
    assert (second.requeue, second.held, jobs[3].held) == (False, False, True)
    assert [(job.reason, job.gpus_wanted, job.waits_for_room) for job in (first, second, jobs[3])] == [
        ("", 6, False),
        ("Resources", 24, True),
        ("JobHeldUser", 0, False),
    ]
    assert (jobs[4].state, jobs[4].exit_code) == ("FAILED", 3)


def test_nodes_of_22_05() -> None:
    nodes = parse_json.nodes(recorded("sinfo.json")).records
    assert (nodes["gpu001"].gpus, nodes["gpu001"].gpu_type) == (8, "h200")
    assert nodes["gpu004"].drained
    assert nodes["gpu004"].reason == "fan 3 is bad: State=ask Weight"
    third = nodes["gpu003"]
    assert (third.weight, third.features) == (77, ("h200", "gangwatch_probation"))
    assert third.comment == "gangwatch: probation: it = well"
    assert third.partitions == ("batch",)


def test_the_text_forms_give_the_same_records() -> None:
    jobs = parse_json.jobs(recorded("squeue.json")).records
    parsed = columns.jobs(recorded("columns.txt"), columns.places(recorded("places.txt"))).records
    for number in (1, 6):
        gpus = parse_text.gpus_of_job(recorded(f"job{number}.txt").decode(), parsed[number].nodes)
        assert gpus is not None
        parsed[number] = dataclasses.replace(parsed[number], gpus=gpus)
    assert parsed == jobs
    nodes, others = parse_json.nodes(recorded("sinfo.json")).records, parse_text.nodes(recorded("nodes.txt").decode())
    assert nodes == others.records


# --- later releases --------------------------------------------------------------------------------------------------


def _optional(value: Any) -> dict[str, Any]:
    return {"set": value is not None, "infinite": False, "number": value or 0}


def as_later(document: dict[str, Any], states_are_lists: bool) -> bytes:
    """Return a recorded document in the format of data_parser v0.0.39 (job states are text) or v0.0.40 (lists)."""
    for job in document.get("jobs", ()):
        for key in ("time_limit", "priority", "start_time", "eligible_time", "node_count", "array_task_id"):
            job[key] = _optional(job[key])
        if states_are_lists:
            job["job_state"] = [job["job_state"]]
        code = job["exit_code"]
        job["exit_code"] = {
            "status": ["SUCCESS" if code == 0 else "ERROR"],
            "return_code": _optional(code >> 8),
            "signal": {"id": _optional(None), "name": ""},
        }
    for node in document.get("nodes", ()):
        node["state"] = [node["state"].upper(), *node.pop("state_flags")]
        node["features"] = node["features"].split(",")
        node["active_features"] = node["active_features"].split(",")
        node["boot_time"] = _optional(node["boot_time"])
    return json.dumps(document).encode()


@pytest.mark.parametrize("states_are_lists", [False, True])
def test_later_releases_give_the_same_records(states_are_lists: bool) -> None:
    jobs = as_later(json.loads(recorded("squeue.json")), states_are_lists)
    nodes = as_later(json.loads(recorded("sinfo.json")), states_are_lists)
    assert parse_json.jobs(jobs).records == parse_json.jobs(recorded("squeue.json")).records
    assert parse_json.nodes(nodes).records == parse_json.nodes(recorded("sinfo.json")).records


def test_flags_next_to_the_state() -> None:
    document = json.loads(recorded("squeue.json"))
    document["jobs"] = document["jobs"][:1]
    for states, base, completing in (
        (["RUNNING", "COMPLETING"], "RUNNING", True),
        (["COMPLETING"], "COMPLETED", True),
        (["CONFIGURING"], "RUNNING", False),
        (["PENDING", "REQUEUE_HOLD"], "PENDING", False),
    ):
        document["jobs"][0]["job_state"] = states
        job = parse_json.jobs(json.dumps(document).encode()).records[1]
        assert (job.state, job.completing) == (base, completing)
    assert job.held


def test_only_changed_records_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    job = parse_json._Fields.job

    def counted(fields: parse_json._Fields) -> SlurmJob:
        found = job(fields)
        read.append(found.number)
        return found

    monkeypatch.setattr(parse_json._Fields, "job", counted)
    document = json.loads(recorded("squeue.json"))
    entries = document["jobs"]
    known: parse_json.Records[SlurmJob] = parse_json.Records()

    def listed() -> parse_json.Jobs:
        read.clear()
        found = parse_json.jobs(json.dumps(document).encode(), known=known)
        took = list(read)
        assert found == parse_json.jobs(json.dumps(document).encode()), "the same as without earlier records"
        read[:] = took
        return found

    numbers = list(listed().records)
    assert read == numbers and len(numbers) > 2
    assert list(listed().records) == numbers and read == []
    entries[1]["comment"] = "changed"
    entries[0]["job_id"] = None
    found = listed()
    assert (read, found.records[numbers[1]].comment) == ([numbers[1]], "changed")
    assert [one.where for one in found.refused] == ["squeue --json: jobs[0]"]
    gone = entries.pop(2)
    listed()
    assert read == []
    entries.append(gone)
    listed()
    assert read == [numbers[2]], "a record that was missing is not kept"


def test_a_name_that_is_not_utf_8_spoils_no_other_record() -> None:
    document = json.loads(recorded("squeue.json"))
    document["jobs"] = document["jobs"][:2]
    document["jobs"][0]["name"] = "MARK"
    found = parse_json.jobs(json.dumps(document).encode().replace(b"MARK", b"a\xffb"))
    assert [job.name for job in found.records.values()] == ["a\ufffdb", document["jobs"][1]["name"]]


# --- damaged ---------------------------------------------------------------------------------------------------------


@given(st.integers(min_value=0, max_value=len(recorded("squeue.json")) - 3))
def test_a_document_truncated_anywhere_is_refused(at: int) -> None:
    with pytest.raises(BackendError, match="not a complete JSON document"):
        parse_json.jobs(recorded("squeue.json")[:at])


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("job_id", None, r"jobs\[0\].job_id: the value is missing"),
        ("job_state", None, r"jobs\[0\].job_state: the value is missing"),
        ("nodes", "gpu[001-", r"jobs\[0\].nodes: 'gpu\[001-' is not a host list"),
        ("nodes", 7, r"jobs\[0\].nodes: expected a string"),
        ("gres_detail", ["gpu:8"], r"jobs\[0\].gres_detail: 1 entries for 2 nodes"),
        ("gres_detail", ["gpu:8(IDX:x)", "gpu:8"], r"jobs\[0\].gres_detail: 'x'"),
        ("restart_cnt", 1.5, r"jobs\[0\].restart_cnt: 1.5 is not a count"),
        ("time_limit", True, r"jobs\[0\].time_limit: expected a number"),
    ],
)
def test_a_field_of_a_wrong_type_is_named(key: str, value: Any, expected: str) -> None:
    document = json.loads(recorded("squeue.json"))
    document["jobs"] = document["jobs"][:1]
    document["jobs"][0][key] = value
    with pytest.raises(BackendError, match=expected):
        parse_json.jobs(json.dumps(document).encode())


def test_a_line_without_a_required_field_is_named() -> None:
    found = parse_text.nodes("NodeName=a State=IDLE Weight=1\nNodeName=b Weight=1")
    (refused,) = found.refused
    assert (refused.where, refused.why) == ("scontrol show nodes: line 2", ": State: the value is missing")
    with pytest.raises(BackendError, match="line 1: State: the value is missing"):
        parse_text.nodes("NodeName=b Weight=1")
    with pytest.raises(BackendError, match="the output is empty"):
        parse_text.nodes("\n")
    assert columns.jobs(b"", {}).records == {}


# --- small forms -----------------------------------------------------------------------------------------------------


def test_host_lists() -> None:
    assert expand("gpu[001-003,7],login") == ("gpu001", "gpu002", "gpu003", "gpu7", "login")
    assert expand("r[1-2]n[08-10]") == ("r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10")
    assert expand("(null)") == ()
    for wrong in ("gpu[", "gpu]", "gpu[3-1]", "gpu[a]", "a,,b", "n[0-9999999]"):
        with pytest.raises(ValueError, match=r"host list|not a node name|not a range|neither a number"):
            expand(wrong)


@given(st.lists(st.sampled_from(["a", "gpu001", "gpu1", "login-2", "r1n08"]), min_size=1, max_size=8))
def test_joined_names_expand_to_themselves(names: list[str]) -> None:
    assert list(expand(join(names))) == names


def test_generic_resources() -> None:
    assert gpus_of("gpu:h200:8(S:0-1),shard:16") == (8, "h200")
    assert gpus_of("gpu:a100:4,gpu:h200:4") == (8, "")
    assert gpus_of("gpu:2") == (2, "")
    assert gpus_of("(null)") == (0, "")
    assert indices_of("gpu:h200:3(IDX:0-1,6)") == (0, 1, 6)
    assert indices_of("gpu:3") == (0, 1, 2)


# --- opting in -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comment", "opted"),
    [
        ("", OptIn()),
        ("my run", OptIn()),
        ("gangwatch:restartable", OptIn(True)),
        (
            "run 7 gangwatch:restartable,signal=SIGUSR2,grace=5,every=600 x",
            OptIn(True, "USR2", grace_seconds=5.0, every_seconds=600.0),
        ),
        ("gangwatch:restartable,signal=10,batch", OptIn(True, "USR1", True)),
    ],
)  # fmt: skip
def test_declarations_in_a_comment(comment: str, opted: OptIn) -> None:
    assert of_comment(comment) == opted


@pytest.mark.parametrize("wrong", ["signal=WRONG", "grace=-1", "grace=nan", "retries=3", "signal="])
def test_an_invalid_declaration_is_ignored(wrong: str) -> None:
    opted = of_comment(f"gangwatch:restartable,{wrong}")
    assert not opted.restartable
    assert opted.complaint


@given(
    st.builds(
        OptIn,
        st.just(True),
        st.sampled_from(["", "USR1", "TERM"]),
        st.booleans(),
        st.integers(0, 86400).map(float),
        st.integers(0, 86400).map(float),
        st.none() | st.integers(1, 86400).map(float),
    )
)
def test_a_declaration_is_read_back(opted: OptIn) -> None:
    assert of_comment(comment_of(opted)) == opted


def test_declarations_in_a_script() -> None:
    assert of_script("#!/bin/sh\n#SBATCH --signal=B:USR1@90\n") == OptIn(True, "USR1", True, 90.0)
    assert of_script("#SBATCH -N 4 --signal=TERM") == OptIn(True, "TERM", False, 60.0)
    assert of_script("#SBATCH --time=5\necho --signal=USR1\n") == OptIn()
    assert of_script("") == OptIn()
