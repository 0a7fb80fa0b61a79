"""Fuzz targets: output of Slurm's commands in its different formats, and job comments of users."""

from __future__ import annotations

import dataclasses
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.schema.errors import BackendError, TraceError
from benchmarks.fuzz import mutate
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target
from benchmarks.slurm.printed import (
    SUBMITTED,
    Printed,
    as_json,
    as_text,
    in_columns,
    in_places,
    nodes_in_json,
    nodes_in_text,
)
from scheduler_feedback.backends.slurm.parsing import columns, opt_in, parse_json, parse_text
from scheduler_feedback.backends.slurm.parsing.slurm_objects import Jobs, Nodes
from scheduler_feedback.sim.traces import slurm as sacct

_BACKEND = "scheduler_feedback.backends.slurm"
NAMES = (
    b"train", b"", b"a b=c", b"x\ny", "x\u2028y\x85".encode(), b"\xff\xfe", b" Nodes=gpu001 CPU_IDs=0 Mem=0 GRES=gpu:1",
    b"x UserId=root(0) JobState=RUNNING", b"\x1b[31m", b"n" * 300, b"JobId=7 JobName=x", b"  ",
)  # fmt: skip
COMMENTS = (
    b"", b"gangwatch:restartable", b"gangwatch:restartable,signal=USR1,grace=60", b"c" * 1024, b"c" * 1025, b"(null)",
    b"do-not-touch\nJobId=7 Comment=gangwatch:restartable", b"\xe2\x80", b"gangwatch:restartable,grace=nan",
)  # fmt: skip
STATES = ("RUNNING", "PENDING", "COMPLETING", "COMPLETED", "FAILED", "SUSPENDED", "REQUEUE_HOLD", "CANCELLED", "X", "")


def jobs(chance: random.Random) -> list[Printed]:
    """Return some jobs. One or two of them are unusual."""
    made = []
    for number in chance.sample(range(1, 1000), chance.randrange(1, 5)):
        count = chance.randrange(4)
        made.append(
            Printed(
                number,
                chance.choice(NAMES),
                chance.choice(("ann", "bob", "u" * 40)),
                chance.choice(STATES[:5]),
                tuple(f"gpu{at:03d}" for at in chance.sample(range(1, 9), count)) or ("gpu001",),
                tuple(sorted(chance.sample(range(8), chance.randrange(5)))),
                chance.choice(COMMENTS),
                folder=chance.choice(NAMES),
                account=chance.choice(NAMES[:6]),
                restarts=chance.choice((0, 0, 1, 4_294_967_294)),
                batch=chance.random() < 0.8,
                requeue=chance.random() < 0.8,
                submitted=SUBMITTED + chance.randrange(10**6),
                excluded=("gpu004",) if chance.random() < 0.2 else (),
                priority=chance.choice((0, 1, 2**32 - 1)),
                limit_minutes=chance.choice((None, 1, 90, 10_000)),
                exit_code=chance.choice((0, 1, 255)),
            )
        )
    return made


def _outcome(listed: Jobs | Nodes) -> str:
    return REFUSED if listed.refused else ACCEPTED


# --- columns ---------------------------------------------------------------------------------------------------------


def _make_columns(chance: random.Random) -> bytes:
    """Make the two listings of the queue in columns, one after the other, preceded by the length of the first."""
    printed = jobs(chance)
    output, where = bytearray(in_columns(printed)), in_places(printed)
    what = chance.randrange(10)
    if what < 5:
        # A value of arbitrary bytes in its column; the width is unchanged.
        begin = chance.randrange(len(printed)) * (columns.RECORD_BYTES + 1)
        for name, width in columns.COLUMNS:
            if chance.random() < 0.15:
                value = _column(chance, name)[:width]
                output[begin : begin + width] = value.ljust(width)
            begin += width
    elif what == 5:
        where = mutate.lines(chance, where)
    elif what == 6:
        output = bytearray(mutate.octets(chance, bytes(output), 2))
    elif what == 7:
        # As 26.05 prints a job without an exit code.
        end = chance.randrange(len(printed)) * (columns.RECORD_BYTES + 1) + columns.RECORD_BYTES
        del output[end - columns.COLUMNS[-1][1] : end]
    elif what == 8 and chance.random() < 0.5:
        output = bytearray()
    return len(output).to_bytes(4, "big") + bytes(output) + where


def _column(chance: random.Random, name: str) -> bytes:
    usual = {
        "state": STATES,
        "timelimit": ("UNLIMITED", "NOT_SET", "INVALID", "Partition_Limit", "1-00:00:00", "5:00", "1:00:00", "x", "99"),
        "exit_code": ("0", "256", "9", "0:9", "3:0", "4294967294", "x", "", "1:"),
        "starttime": ("N/A", "Unknown", "2026-11-22T10:00:00", "2026-11-22T10:00:00+01:00", "0000-00-00", "soon"),
        "tres-per-node": ("N/A", "gres:gpu:8", "gres:gpu", "gpu", "gres/gpu=4", "gres:gpu:h200:99999999999"),
        "numnodes": ("1", "0", "", "4294967294", "99999", "x", "3-4"),
    }
    if name in usual and chance.random() < 0.7:
        return chance.choice(usual[name]).encode()
    return chance.choice(mutate.TEXTS).encode("utf-8", "replace")


def _parse_columns(data: bytes) -> str:
    length = int.from_bytes(data[:4], "big")
    output, where = data[4 : 4 + length], columns.places(data[4 + length :])
    try:
        columns.records(output)
    except BackendError:
        return REFUSED_FIRST
    try:
        listed = columns.jobs(output, where)
    except BackendError:
        return REFUSED
    for job in listed.records.values():
        assert len(job.nodes) == len(job.gpus), "of each node its GPUs"
        opt_in.of_comment(job.comment)
    return _outcome(listed)


# --- JSON ------------------------------------------------------------------------------------------------------------


def _later(chance: random.Random, document: Any) -> Any:
    """Convert numbers, states and exit codes to the form of data_parser v0.0.39 and v0.0.40: objects or lists."""
    for job in document["jobs"]:
        for key in ("time_limit", "priority", "start_time", "eligible_time", "node_count", "submit_time"):
            if chance.random() < 0.8:
                job[key] = {"set": job[key] is not None, "infinite": chance.random() < 0.1, "number": job[key] or 0}
        if chance.random() < 0.5:
            job["job_state"] = [job["job_state"], *(["COMPLETING"] if chance.random() < 0.3 else [])]
        if chance.random() < 0.6:
            signal = {"set": True, "number": chance.choice((0, 9))}
            job["exit_code"] = {"return_code": {"set": True, "number": 3}, "signal": {"id": signal}}
        elif chance.random() < 0.5:
            job["exit_code"] = {"return_code": 3, "signal_id": chance.choice((0, 9))}
    return document


def _make_json_jobs(chance: random.Random) -> bytes:
    printed = as_json(jobs(chance))
    if chance.random() < 0.2:
        return mutate.octets(chance, printed) if chance.random() < 0.6 else printed
    document = json.loads(printed.decode("utf-8", "replace"))
    if chance.random() < 0.4:
        document = _later(chance, document)
    what = chance.random()
    if what < 0.08:
        document["errors"] = chance.choice(([{"error": "down"}], ["down"], "down", {"a": 1}, [None], 7))
    elif what < 0.14:
        document = mutate.tree(chance, document)
    else:
        document["jobs"] = [mutate.tree(chance, job, chance.choice((0, 1, 1, 2))) for job in document["jobs"]]
    return json.dumps(document, ensure_ascii=chance.random() < 0.5).encode("utf-8", "replace")


def _make_json_nodes(chance: random.Random) -> bytes:
    document = json.loads(nodes_in_json([f"gpu{at:03d}" for at in range(chance.randrange(1, 4))]))
    for node in document["nodes"]:
        if chance.random() < 0.3:
            node["gres"] = chance.choice(("gpu:8", "gpu", "gpu:h200", "gpu:a:4,gpu:b:4", "(null)", "gpu:h200:8(S:0-1)"))
        if chance.random() < 0.3:
            node["state"] = chance.choice((["IDLE", "DRAIN"], [], "down", [""], ["idle", 7]))
        if chance.random() < 0.2:
            node["active_features"] = chance.choice((["a", "b"], [], [1], None))
    document["nodes"] = [mutate.tree(chance, node, chance.choice((0, 1, 1, 2))) for node in document["nodes"]]
    if chance.random() < 0.1:
        document = mutate.tree(chance, document)
    made = json.dumps(document).encode()
    return mutate.octets(chance, made) if chance.random() < 0.1 else made


def _json_parser(parse: Callable[[bytes], Jobs] | Callable[[bytes], Nodes]) -> Callable[[bytes], str]:
    def run(data: bytes) -> str:
        try:
            return _outcome(parse(data))
        except BackendError as error:
            return REFUSED_FIRST if "no whole JSON document" in str(error) else REFUSED

    return run


# --- text ------------------------------------------------------------------------------------------------------------


def _make_text_nodes(chance: random.Random) -> bytes:
    made = nodes_in_text([f"gpu{at:03d}" for at in range(chance.randrange(1, 4))])
    if chance.random() < 0.3:
        reason = chance.choice((b"fan 3 [root@2026-11-22T10:00:00]", b"State=ask Weight=5", b"x [y", b"Comment=z"))
        made = made.replace(b"Partitions=", b"Reason=" + reason + b" Partitions=", 1)
    return mutate.lines(chance, made, chance.randrange(4)) if chance.random() < 0.9 else mutate.octets(chance, made, 3)


def _parse_text_nodes(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    try:
        return _outcome(parse_text.nodes(text))
    except BackendError:
        return REFUSED_FIRST if "NodeName=" not in text else REFUSED


def _make_gpus(chance: random.Random) -> bytes:
    """Make the output of scontrol for one job, preceded by a line with the queried nodes."""
    job = dataclasses.replace(chance.choice(jobs(chance)), state="RUNNING")
    made = as_text([job])
    for _ in range(chance.randrange(3)):
        old = chance.choice((b"Nodes=", b"GRES=gpu:h200:", b"(IDX:", b"CPU_IDs=", b" "))
        new = chance.choice((b"Nodes=gpu[001-", b"GRES=", b"(IDX:0-9999,", b"(IDX:x", b"\n", b"GRES=gpu:9999999", old))
        made = made.replace(old, new, 1)
    if chance.random() < 0.3:
        made = mutate.lines(chance, made)
    return ",".join(job.nodes).encode() + b"\n" + made


def _parse_gpus(data: bytes) -> str:
    first, _, rest = data.partition(b"\n")
    nodes = tuple(first.decode("utf-8", "replace").split(","))
    text = rest.decode("utf-8", "replace")
    found = parse_text.gpus_of_job(text, nodes)
    if found is None:
        return REFUSED if "GRES=" in text else REFUSED_FIRST
    assert len(found) == len(nodes)
    return ACCEPTED


# --- declarations ----------------------------------------------------------------------------------------------------


WORDS = (
    "restartable", "signal=USR1", "signal=SIGTERM", "signal=10", "signal=99", "signal=NONE", "signal=", "grace=60",
    "grace=nan", "grace=-1", "grace=1e9", "grace=x", "restart=30", "every=600", "every=0", "batch", "retries=3", "",
)  # fmt: skip
DIRECTIVES = (
    "#!/bin/sh", "#SBATCH --signal=USR1@60", "#SBATCH -N 4 --signal=B:TERM", "#SBATCH --signal USR2@99999999999",
    "#SBATCH --signal=R:10@1", "#SBATCH --signal=NONSENSE", "#SBATCH --signals=USR1", "train", "",
    "#SBATCH --signal=USR1@" + "9" * 5000, "#SBATCH --signal=" + "9" * 20,
)  # fmt: skip


def _make_declaration(chance: random.Random) -> bytes:
    if chance.random() < 0.4:
        made = "\n".join(chance.choices(DIRECTIVES, k=chance.randrange(1, 5)))
        return b"script\n" + (mutate.text(chance, made) if chance.random() < 0.4 else made).encode("utf-8", "replace")
    made = "gangwatch:" + ",".join(chance.choices(WORDS, k=chance.randrange(1, 5)))
    if chance.random() < 0.3:
        made = f"{chance.choice(mutate.TEXTS)} {made} {chance.choice(mutate.TEXTS)}"
    return b"comment\n" + (mutate.text(chance, made) if chance.random() < 0.3 else made).encode("utf-8", "replace")


def _parse_declaration(data: bytes) -> str:
    kind, _, rest = data.partition(b"\n")
    text = rest.decode("utf-8", "replace")
    opted = opt_in.of_script(text) if kind == b"script" else opt_in.of_comment(text)
    assert not (opted.complaint and opted.restartable), "a declaration with a complaint must not count as consent"
    if opted.restartable:
        again = opt_in.of_comment(opt_in.comment_of(opted))
        assert again.restartable and again.signal == opted.signal
        assert 0 <= opted.grace_seconds <= opt_in.MOST_GRACE_SECONDS
        return ACCEPTED
    return REFUSED if opted.complaint or "gangwatch:" in text or "#SBATCH" in text else REFUSED_FIRST


# --- past jobs -------------------------------------------------------------------------------------------------------


SACCT = (
    b"JobID|JobName|User|Partition|Submit|Start|End|ElapsedRaw|TimelimitRaw|AllocTRES|NNodes|State|Comment\n"
    b"7|llm|ann|gpu|2026-11-22T10:00:00|2026-11-22T10:00:05|2026-11-22T11:00:00|3595|60|cpu=4,gres/gpu=8|1|COMPLETED|\n"
    b"7.batch|batch||gpu|2026-11-22T10:00:00|2026-11-22T10:00:05|2026-11-22T11:00:00|3595||cpu=4|1|COMPLETED|\n"
    b"8|x y|bob|gpu|2026-11-22T10:00:01|Unknown|Unknown|0|UNLIMITED|gres/gpu:h200=4,gres/gpu=4|2|CANCELLED|\n"
    b"9_1|arr|bob|gpu|1795430000|2026-11-22T10:00:05|2026-11-22T11:00:00|10||gres/gpu=1|1|COMPLETED|gangwatch:restartable\n",
    b"JobID|JobName|Submit|Start|End|Elapsed|Timelimit|ReqGRES|NNodes\n"
    b"7|llm|2026-11-22T10:00:00|2026-11-22T10:00:05|2026-11-22T11:00:00|1-00:00:00|05:00|gpu:8|2\n"
    b"8|llm|2026-11-22T10:00:00|2026-11-22T10:00:05|2026-11-22T09:00:00||Partition_Limit|gpu:h200:8|x\n",
)
SACCT_JSON = {
    "jobs": [
        {"job_id": 7, "name": "llm", "user": "ann", "partition": "gpu", "comment": {"job": "gangwatch:restartable"},
         "time": {"submission": 1795430000, "start": 1795430005, "end": 1795433000, "elapsed": 2995,
                  "limit": {"set": True, "infinite": False, "number": 60}},
         "tres": {"allocated": [{"type": "gres", "name": "gpu:h200", "count": 8}, {"type": "cpu", "count": 4}],
                  "requested": [{"type": "gres", "name": "gpu", "count": 8}]},
         "state": {"current": ["COMPLETED"], "reason": "None"}},
        {"job_id": 8, "name": None, "time": {"submission": 1795430000, "start": 0, "elapsed": 0, "limit": 5},
         "tres": {"requested": [{"type": "gres", "name": "gpu", "count": 1}]}, "state": {"current": "PENDING"}},
    ]
}  # fmt: skip


def _make_sacct(chance: random.Random) -> bytes:
    if chance.random() < 0.4:
        tree = {"jobs": [mutate.tree(chance, job, chance.randrange(3)) for job in SACCT_JSON["jobs"]]}
        return json.dumps(tree if chance.random() < 0.9 else mutate.tree(chance, tree)).encode("utf-8", "replace")
    made = chance.choice(SACCT)
    for _ in range(chance.randrange(3)):
        rows = made.split(b"\n")
        at = chance.randrange(1, len(rows)) if chance.random() < 0.9 else 0
        cells = rows[at].split(b"|")
        cells[chance.randrange(len(cells))] = chance.choice(mutate.TEXTS).encode("utf-8", "replace")
        rows[at] = b"|".join(cells)
        made = b"\n".join(rows)
    return mutate.octets(chance, made) if chance.random() < 0.1 else made


def _parse_sacct(data: bytes) -> str:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", suffix=".txt") as file:
        file.write(data)
        file.flush()
        try:
            trace = sacct.read(Path(file.name))
        except TraceError:
            return REFUSED if data[:6] in (b"JobID|", b'{"jobs') else REFUSED_FIRST
    return REFUSED if trace.refused else ACCEPTED


TARGETS = (
    Target(
        "slurm-columns",
        _make_columns,
        _parse_columns,
        (
            f"{_BACKEND}.parsing.columns",
            f"{_BACKEND}.parsing.hostlist:expand",
            f"{_BACKEND}.parsing.gres:wanted",
            f"{_BACKEND}.parsing.gres:gpus_of",
        ),
    ),
    Target(
        "slurm-jobs-json",
        _make_json_jobs,
        _json_parser(parse_json.jobs),
        (
            f"{_BACKEND}.parsing.parse_json:jobs",
            f"{_BACKEND}.parsing.parse_json:_listing",
            f"{_BACKEND}.parsing.parse_json:_listed",
            f"{_BACKEND}.parsing.parse_json:_decoded",
            f"{_BACKEND}.parsing.parse_json:_Fields.job",
            f"{_BACKEND}.parsing.parse_json:_Fields.wrong",
            f"{_BACKEND}.parsing.parse_json:_Fields.text",
            f"{_BACKEND}.parsing.parse_json:_Fields.texts",
            f"{_BACKEND}.parsing.parse_json:_Fields.states",
            f"{_BACKEND}.parsing.parse_json:_Fields.hosts",
            f"{_BACKEND}.parsing.parse_json:_Fields.indices",
            f"{_BACKEND}.parsing.parse_json:_Fields.number",
            f"{_BACKEND}.parsing.parse_json:_Fields.count",
            f"{_BACKEND}.parsing.parse_json:_Fields.truth",
            f"{_BACKEND}.parsing.parse_json:_Fields.exit_code",
        ),
    ),
    Target(
        "slurm-nodes-json",
        _make_json_nodes,
        _json_parser(parse_json.nodes),
        (f"{_BACKEND}.parsing.parse_json:_Fields.node",),
    ),
    Target(
        "slurm-nodes-text",
        _make_text_nodes,
        _parse_text_nodes,
        (
            f"{_BACKEND}.parsing.parse_text:nodes",
            f"{_BACKEND}.parsing.parse_text:_Line",
            f"{_BACKEND}.parsing.parse_text:_node",
        ),
    ),
    Target(
        "slurm-gpus-text",
        _make_gpus,
        _parse_gpus,
        (
            f"{_BACKEND}.parsing.parse_text:gpus_of_job",
            f"{_BACKEND}.parsing.gres:indices_of",
            f"{_BACKEND}.parsing.hostlist:expand",
        ),
    ),
    Target("slurm-declarations", _make_declaration, _parse_declaration, (f"{_BACKEND}.parsing.opt_in",)),
    Target("slurm-sacct", _make_sacct, _parse_sacct, ("scheduler_feedback.sim.traces.slurm",)),
)
