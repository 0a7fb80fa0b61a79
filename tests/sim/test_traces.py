"""Formats of job traces, and errors for invalid files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from agent.schema.errors import TraceError
from scheduler_feedback.sim.job_trace import Trace
from scheduler_feedback.sim.simulation import read_trace
from tests import needs

PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
MURI = "job_id,num_gpu,submit_time,duration,model_name\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


def read(file: Path, text: str | bytes, format_name: str = "philly") -> Trace:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(file, format_name)


def reasons(trace: Trace) -> list[str]:
    return [one.reason for one in trace.refused]


# --- valid files -----------------------------------------------------------------------------------------------------


def test_a_philly_trace_is_read(file: Path) -> None:
    trace = read(file, PHILLY + "2017-10-09 07:01:55,66.5,4,266.0,vc1\n")
    [job] = trace.jobs
    assert (job.job_id, job.line, job.run_seconds) == ("2", 2, 66.5)
    assert (job.spec.ranks, job.spec.queue, job.spec.restartable, job.spec.exact_seconds) == (4, "vc1", True, None)
    assert job.submitted_ns == 1_507_532_515 * 10**9
    assert trace.notes == () and trace.refused == ()


def test_muri_is_in_milliseconds(file: Path) -> None:
    [job] = read(file, MURI + "7,8,1500,2500,bert\n", "muri").jobs
    assert (job.job_id, job.submitted_ns, job.run_seconds) == ("7", 1_500_000_000, 2.5)
    assert (job.spec.ranks, job.spec.workload) == (8, "bert")


def test_openb_pods_run_from_scheduling_to_deletion(file: Path) -> None:
    header = "name,cpu_milli,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    trace = read(
        file,
        header
        + "a,1,1,460,V100M16|V100M32,BE,Succeeded,10,70,20\n"
        + "b,1,0,0,,LS,Succeeded,10,70,20\n"
        + "c,1,2,1000,,LS,Pending,10,70,\n",
        "openb",
    )
    [job] = trace.jobs
    assert (job.submitted_ns, job.run_seconds, job.spec.gpu_types) == (10 * 10**9, 50.0, ("V100M16", "V100M32"))
    assert (job.spec.queue, job.spec.preemptible) == ("BE", True)
    assert reasons(trace) == [
        "line 3, column num_gpu: requests no GPU",
        "line 4, column scheduled_time: was never scheduled, so its run time is unknown",
    ]
    note = "1 pods request a share of a GPU; the sharing rules fgd and best-fit give it, others a whole GPU"
    assert trace.notes == (note,)


PAI = (
    "a,ps,2.0,Terminated,100.0,400.0,600.0,10.0,,\n"
    "b,tensorflow,1.0,Terminated,50.0,60.0,600.0,10.0,50.0,MISC\n"
    "a,worker,3.0,Failed,110.0,500.0,600.0,10.0,200.0,V100\n"
    "c,worker,1.0,Running,110.0,,600.0,10.0,100.0,T4\n"
    "d,ps,1.0,Terminated,110.0,120.0,600.0,10.0,0.0,\n"
    "e,worker,1.0,Terminated,120.0,110.0,600.0,10.0,100.0,T4\n"
    "f,worker,1.5,Terminated,120.0,130.0,600.0,10.0,100.0,T4\n"
)
"""Lines of the published form, which has no header."""


@pytest.mark.parametrize(
    "header", ["", "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"]
)
def test_the_tasks_of_a_pai_job_are_its_ranks(file: Path, header: str) -> None:
    trace = read(file, header + PAI, "pai")
    first, second = trace.jobs
    assert (first.job_id, first.spec.ranks, first.submitted_ns, first.run_seconds) == ("b", 1, 50 * 10**9, 10.0)
    assert (second.job_id, second.spec.ranks, second.submitted_ns, second.run_seconds) == ("a", 6, 100 * 10**9, 400.0)
    line = 5 if header else 4
    assert reasons(trace) == [
        f"line {line}, column end_time: is empty: the task did not end, so the run time of its job is unknown",
        f"line {line + 1}, column plan_gpu: no task of the job requests a GPU",
        f"line {line + 2}, column end_time: the task ended before it started",
        f"line {line + 3}, column inst_num: 1.5 is not a whole number",
    ]
    assert trace.notes == (
        "no pai_job_table.csv beside the file: a job is submitted when its first task starts",
        "1 jobs request shares of GPUs and get whole ones, because slots are not divided",
        "the jobs were not in the order of submission and have been sorted",
    )


def test_the_job_table_of_pai_has_submissions_and_users(file: Path) -> None:
    file.with_name("pai_job_table.csv").write_text(
        "a,i1,u1,Failed,40.0,500.0\nb,i2,u2,Terminated,99.0,60.0\nz,i3,u3,Waiting,,\nbroken\n"
    )
    jobs = {job.job_id: (job.submitted_ns / 1e9, job.spec.user) for job in read(file, PAI, "pai").jobs}
    assert jobs == {"a": (40.0, "u1"), "b": (50.0, "u2")}, "b's table says that it started before its submission"


def test_own_format_reads_every_field_of_a_job(file: Path) -> None:
    trace = read(
        file,
        '{"submitted_seconds": 1.5, "run_seconds": 10, "ranks": 4, "min_ranks": 2, "queue": "a", "priority": 3,'
        ' "required_level": "rack", "after": [{"job_id": "x", "condition": "ok"}]}\n'
        '{"submitted_seconds": 2, "run_seconds": 10, "ranks": 1, "job": "named", "restartable": true}\n',
        "gangwatch",
    )
    first, second = trace.jobs
    assert (first.job_id, first.submitted_ns, first.spec.min_ranks, first.spec.priority) == ("1", 1_500_000_000, 2, 3)
    assert (second.job_id, second.spec.restartable) == ("named", True)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"submitted_seconds": 1, "run_seconds": 10}', "line 2: Object missing required field `ranks`"),
        ('{"submitted_seconds": 1, "ranks": 1}', "line 2: key run_seconds: is missing"),
        ('{"submitted_seconds": 1, "run_seconds": -1, "ranks": 1}', "line 2: key run_seconds: -1 is negative"),
        (
            '{"submitted_seconds": "1", "run_seconds": 1, "ranks": 1}',
            "line 2: key submitted_seconds: '1' is not a number",
        ),
        ('{"submitted_seconds": 1, "run_seconds": 1, "ranks": 0}', "line 2: key ranks: 0 is less than 1"),
        (
            '{"submitted_seconds": 1, "run_seconds": 1, "ranks": 1, "quue": "a"}',
            "line 2: key 'quue' is not a field of a job",
        ),
        ('{"submitted_seconds": 1, "run_seconds": 1, "ranks": 1, "exact_seconds": 1}', "is not a field of a job"),
        ('{"submitted_seconds": 1e300, "run_seconds": 1, "ranks": 1}', "key submitted_seconds: 1e+300 is more than"),
        (
            '{"submitted_seconds": 1, "run_seconds": 1, "ranks": 1, "grace_seconds": 1e300}',
            "a grace of 1e+300 s",
        ),
        (
            '{"submitted_seconds": 1, "run_seconds": 1, "ranks": 1, "array_size": 1000000000}',
            "array_size of 1e+09",
        ),
        (
            f'{{"submitted_seconds": 1, "run_seconds": 1, "ranks": 1, "priority": -{10**30}}}',
            "priority of 1e+30",
        ),
        ("nonsense", "line 2: JSON is malformed"),
        ("[1, 2]", "line 2: Expected `object`"),
    ],
)
def test_own_format_refuses_with_line_and_key(file: Path, line: str, reason: str) -> None:
    trace = read(file, '{"submitted_seconds": 0, "run_seconds": 1, "ranks": 1}\n' + line + "\n", "gangwatch")
    assert [job.job_id for job in trace.jobs] == ["1"]
    [said] = reasons(trace)
    assert reason in said


# --- Slurm -----------------------------------------------------------------------------------------------------------

_SACCT_NEW = (
    "JobID|JobName|User|Partition|Submit|Start|End|ElapsedRaw|TimelimitRaw|AllocTRES|State\n"
    "100|train|ann|gpu|2024-05-01T10:00:00|2024-05-01T10:05:00|2024-05-01T11:05:00|3600|120"
    "|billing=64,cpu=64,gres/gpu:a100=16,gres/gpu=16,mem=1T,node=2|COMPLETED\n"
    "100.batch|batch|||2024-05-01T10:05:00|2024-05-01T10:05:00|2024-05-01T11:05:00|3600||cpu=64|COMPLETED\n"
    "101_3|sweep|bob|gpu|2024-05-01T09:00:00|2024-05-01T10:05:00|Unknown|60|UNLIMITED|cpu=1,gres/gpu=1|RUNNING\n"
    "102|cpu|bob|cpu|2024-05-01T09:00:00|2024-05-01T10:05:00|Unknown|60|5|cpu=1|COMPLETED\n"
    "103|never|bob|gpu|2024-05-01T09:00:00|None|Unknown|0|5|gres/gpu=1|CANCELLED by 1000\n"
)


def test_sacct_columns_of_new_slurm_are_read(file: Path) -> None:
    trace = read(file, _SACCT_NEW, "slurm")
    sweep, train = trace.jobs
    assert (train.job_id, train.run_seconds, train.spec.ranks) == ("100", 3600.0, 16)
    assert (train.spec.user, train.spec.queue, train.spec.workload) == ("ann", "gpu", "train")
    assert (train.spec.time_limit_seconds, train.spec.gpu_types) == (7200.0, ("a100",))
    assert (sweep.job_id, sweep.spec.time_limit_seconds, sweep.spec.gpu_types) == ("101_3", None, ())
    assert reasons(trace) == [
        "line 5, column AllocTRES: requests no GPU",
        "line 6, column Start: never started, so its run time is unknown",
    ]


def test_sacct_columns_of_old_slurm_are_read(file: Path) -> None:
    text = (
        "JobID|Submit|Start|End|Elapsed|Timelimit|NNodes|AllocGRES|Partition\n"
        "7|2019-01-01T00:00:00|2019-01-01T00:10:00|2019-01-02T01:10:00|1-01:00:00|2-00:00:00|4|gpu:8|dgx\n"
        "8|2019-01-01T00:00:00|2019-01-01T00:10:00|2019-01-01T00:10:30|00:00:30|Partition_Limit|1|gpu:v100:2(S:0)|dgx\n"
    )
    first, second = read(file, text, "slurm").jobs
    assert (first.run_seconds, first.spec.ranks, first.spec.time_limit_seconds) == (90_000.0, 32, 172_800.0)
    assert (second.run_seconds, second.spec.ranks, second.spec.gpu_types) == (30.0, 2, ("v100",))


def test_sacct_without_elapsed_takes_start_and_end(file: Path) -> None:
    text = (
        "JobID|Submit|Start|End|ReqTRES\n"
        "1|2024-05-01T10:00:00|2024-05-01T10:05:00|2024-05-01T11:05:00|gres/gpu=4\n"
        "2|2024-05-01T10:00:00|2024-05-01T10:05:00|Unknown|gres/gpu=4\n"
    )
    trace = read(file, text, "slurm")
    assert [job.run_seconds for job in trace.jobs] == [3600.0]
    assert reasons(trace) == ["line 3, column End: needs Elapsed, or Start and End"]


@pytest.mark.parametrize(
    "limit", ["90", '{"set": true, "infinite": false, "number": 90}'], ids=["22.05", "23.02 and later"]
)
def test_sacct_output_as_json_is_read(file: Path, limit: str) -> None:
    text = (
        '{"meta": {}, "jobs": ['
        '{"job_id": 5, "name": "train", "user": "ann", "partition": "gpu", "array": {"job_id": 0, "task_id": null},'
        f'"time": {{"submission": 1700000000, "start": 1700000100, "elapsed": 3600, "limit": {limit}}},'
        '"tres": {"allocated": [{"type": "cpu", "count": 8}, {"type": "gres", "name": "gpu", "count": 4}]}},'
        '{"job_id": 6, "time": {"submission": 1700000000, "start": 1, "elapsed": 1}, "tres": {"allocated": []}},'
        '{"job_id": 7}, "what"]}'
    )
    trace = read(file, text, "slurm")
    [job] = trace.jobs
    assert (job.job_id, job.spec.ranks, job.run_seconds, job.spec.time_limit_seconds) == ("5", 4, 3600.0, 5400.0)
    assert len(trace.refused) == 3
    assert trace.refused[0].reason == "jobs[1]: tres.allocated: requests no GPU"
    assert trace.refused[1].reason.startswith("jobs[2]: no 'time'")


# --- invalid files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format_name", "text", "says"),
    [
        ("philly", "timestamp,num_gpus,cluster\n", "line 1: no column 'duration'"),
        ("muri", "job_id,num_gpu,submit_time\n", "line 1: no column 'duration'"),
        ("openb", "name,num_gpu\n", "line 1: no column 'creation_time'"),
        ("pai", "job_name,inst_num\n", "line 1: no column 'start_time'"),
        ("pai", "a,b\n", "no job can be read"),
        ("slurm", "JobID|Elapsed|AllocTRES\n", "line 1: no column 'Submit'"),
        ("slurm", "JobID|Submit|AllocTRES\n", "no column for the run time: one of ElapsedRaw, Elapsed, End"),
        ("slurm", "JobID|Submit|Elapsed\n", "no column for the GPUs"),
        ("slurm", "{}", "has no list named 'jobs'"),
        ("slurm", "{", "truncated"),
        ("philly", "", "is empty; it needs a header with the columns timestamp"),
        ("philly", PHILLY, "no job can be read"),
        ("gangwatch", "", "no job can be read"),
    ],
)
def test_file_of_another_format_is_refused(file: Path, format_name: str, text: str, says: str) -> None:
    with pytest.raises(TraceError) as raised:
        read(file, text, format_name)
    assert str(raised.value).startswith(str(file))
    assert says in str(raised.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"absent\.csv: No such file"):
        read_trace(tmp_path / "absent.csv", "philly")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("2017-10-09 07:01:55,-5,1,0,a", "line 2, column duration: -5 is less than 0"),
        ("2017-10-09 07:01:55,nan,1,0,a", "line 2, column duration: 'nan' is not finite"),
        ("2017-10-09 07:01:55,1e400,1,0,a", "line 2, column duration: '1e400' is not finite"),
        ("2017-10-09 07:01:55,1e300,1,0,a", "line 2, column duration: 1e300 is more than 1e+18"),
        ("2017-10-09 07:01:55,1e10,1,0,a", "line 2: a run time of 1e+10 s is more than 31 years"),
        ("2017-10-09 07:01:55,5,2000000,0,a", "line 2: ranks of 2e+06 is more than 1048576"),
        ("9999-12-31 07:01:55,5,1,0,a", "line 2: was submitted before 1970, or after 2200"),
        ("0001-01-01 07:01:55,5,1,0,a", "line 2: was submitted before 1970, or after 2200"),
        ("2017-10-09 07:01:55,five,1,0,a", "line 2, column duration: 'five' is not a number"),
        ("2017-10-09 07:01:55,,1,0,a", "line 2, column duration: '' is not a number"),
        ("2017-10-09 07:01:55,5,0,0,a", "line 2, column num_gpus: 0 is less than 1"),
        ("2017-10-09 07:01:55,5,1.5,0,a", "line 2, column num_gpus: 1.5 is not a whole number"),
        ("yesterday,5,1,0,a", "line 2, column timestamp: 'yesterday' is not a date and time"),
        ("2017-10-09 07:01:55,5,1", "line 2, column 4: 3 cells under a header of 5"),
        ("2017-10-09 07:01:55,5,1,0,a,b", "line 2, column 6: 6 cells under a header of 5"),
        ('2017-10-09 07:01:55,5,1,0,"a', ""),
    ],
)
def test_bad_line_is_refused_and_others_are_kept(file: Path, line: str, reason: str) -> None:
    good = "2017-10-09 07:01:55,66.0,1,66.0,vc1\n"
    trace = read(file, PHILLY + line + "\n" + good * 3)
    assert [job.line for job in trace.jobs if job.line > 2] == [3, 4, 5]
    assert reasons(trace) == ([reason] if reason else [])


def test_first_of_duplicate_ids_is_kept(file: Path) -> None:
    trace = read(file, MURI + "7,1,0,1000,a\n8,1,0,1000,a\n7,1,5,2000,b\n", "muri")
    assert [(job.job_id, job.spec.workload) for job in trace.jobs] == [("7", "a"), ("8", "a")]
    assert reasons(trace) == ["line 4: job id '7' is already in line 2"]


def test_missing_id_becomes_the_line_number(file: Path) -> None:
    trace = read(file, MURI + ",1,0,1000,a\nx,1,0,1000,a\n,1,0,1000,a\n", "muri")
    assert [job.job_id for job in trace.jobs] == ["2", "x", "4"]


def test_unsorted_input_is_sorted_stably_with_a_note(file: Path) -> None:
    trace = read(file, MURI + "a,1,50,1000,m\nb,1,10,1000,m\nc,1,50,1000,m\nd,1,10,1000,m\n", "muri")
    assert [job.job_id for job in trace.jobs] == ["b", "d", "a", "c"]
    assert "not in the order of submission" in trace.notes[0]
    assert read(file, MURI + "a,1,10,1000,m\nb,1,10,1000,m\n", "muri").notes == ()


@pytest.mark.parametrize("format_name", ["philly", "muri", "openb", "pai", "slurm", "gangwatch"])
def test_a_million_invalid_lines_fail_quickly(file: Path, format_name: str) -> None:
    headers = {"philly": PHILLY, "muri": MURI, "slurm": "JobID|Submit|Elapsed|AllocTRES\n", "gangwatch": ""}
    header = headers.get(format_name, "num_gpu,creation_time,deletion_time,scheduled_time\n")
    with file.open("w") as out:
        out.write(header)
        for _ in range(10):
            out.write("garbage, und zwar viel; {]\x00\x01 \u00e4\n" * 100_000)
    with pytest.raises(TraceError, match=r"1001 of the first 1001 jobs can't be read.*the first: line [12]") as raised:
        read_trace(file, format_name)
    assert len(str(raised.value)) < 1000


def test_random_bytes_raise_trace_error(file: Path) -> None:
    chance = random.Random(1)
    for size in (0, 1, 100, 10_000, 2_000_000):
        for format_name in ("philly", "slurm", "gangwatch"):
            with pytest.raises(TraceError):
                read(file, chance.randbytes(size), format_name)


def test_invalid_utf8_affects_only_its_own_cell(file: Path) -> None:
    """Text with invalid UTF-8 can be printed, written to a journal, and distinguished from valid text."""
    trace = read(file, PHILLY.encode() + b"2017-10-09 07:01:55,5,1,0,a\xff\n2017-10-09 07:01:55,5,1,0,\xc3\xa9\n")
    assert [job.spec.queue for job in trace.jobs] == ["a\\xff", "é"]
    assert not trace.refused


def test_line_without_an_end_is_an_error(file: Path) -> None:
    with pytest.raises(TraceError, match="line 2 is longer than 1048576 characters"):
        read(file, PHILLY + "a" * (1 << 20) + "b")


def test_load_shortens_the_time_between_arrivals(file: Path) -> None:
    trace = read(file, MURI + "a,1,1000,1000,m\nb,1,3000,1000,m\nc,1,7000,1000,m\n", "muri").scaled(2)
    assert [job.submitted_ns for job in trace.jobs] == [1_000_000_000, 2_000_000_000, 4_000_000_000]
    assert [job.run_seconds for job in trace.jobs] == [1.0, 1.0, 1.0]
    for load in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="it must be more than 0"):
            trace.scaled(load)
    for load in (1e-10, 1e-300):
        with pytest.raises(TraceError, match="the last of its jobs comes after the year 2200"):
            trace.scaled(load)


# --- the public files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "format_name", "jobs", "refused", "ranks"),
    [
        ("philly.csv", "philly", 82_247, 0, 107_235),
        ("muri-trace1.csv", "muri", 1494, 0, None),
        ("muri-trace3.csv", "muri", 992, 0, None),
        ("openb-pods.csv", "openb", 6203, 1949, None),
    ],
)
def test_the_public_traces_are_read(name: str, format_name: str, jobs: int, refused: int, ranks: int | None) -> None:
    trace = read_trace(needs.data("jobs", name), format_name)
    assert (len(trace.jobs), len(trace.refused)) == (jobs, refused)
    assert list(trace.jobs) == sorted(trace.jobs, key=lambda job: job.submitted_ns)
    if ranks is not None:
        assert sum(job.spec.ranks for job in trace.jobs) == ranks
