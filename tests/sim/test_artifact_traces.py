"""Traces whose run times come from measurements: those of Gavel and Sia. Figures by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.schema.errors import TraceError
from gangwatch.cli import cli
from scheduler_feedback.sim.job_trace import Trace
from scheduler_feedback.sim.simulation import read_trace
from scheduler_feedback.sim.speeds.gavel_throughputs import is_gavel, read_gavel
from scheduler_feedback.sim.speeds.shared_slots import read_pair_speeds

A, B, A4 = "('a (batch size 16)', 1)", "('b', 1)", "('a (batch size 16)', 4)"

THROUGHPUTS = {
    "slow": {A: {"null": 2.0, B: [1.0, 0.5]}, B: {"null": 0.0}, A4: {"null": 6.0}},
    "fast": {A: {"null": 10.0, B: [8.0, 4.0], A: [5.0, 5.0]}, B: {"null": 4.0, A: [5.0, 8.0]}, A4: {"null": 32.0}},
    "fast_unconsolidated": {A4: {"null": 16.0}},
}
"""Three job types on two GPU types. `b` does not run on the slow one."""

PHYSICAL = "a (batch size 16)\tpython a.py\ta\t-step\t1\t{steps}\t{gpus}\t1\t-1.0\t{at}\n"
MSR = "a (batch size 16)\tpython a.py\t-step\t1\t{steps}\t{at}\t{gpus}\n"


@pytest.fixture
def gavel(tmp_path: Path) -> Callable[[str], Trace]:
    """Return a function that reads a trace below a folder with throughputs."""
    (tmp_path / "simulation_throughputs.json").write_text(json.dumps(THROUGHPUTS))
    folder = tmp_path / "traces" / "msr"
    folder.mkdir(parents=True)

    def read(text: str) -> Trace:
        (folder / "x.trace").write_text(text)
        return read_trace(folder / "x.trace", "gavel")

    return read


@pytest.mark.parametrize("line", [PHYSICAL, MSR])
def test_gavel_steps_become_seconds_on_the_fastest_gpu_type(gavel: Callable[[str], Trace], line: str) -> None:
    trace = gavel(line.format(steps=100, gpus=1, at=6.5) + line.format(steps=64, gpus=4, at=7.0))
    assert [(job.submitted_ns, job.run_seconds, job.spec.ranks) for job in trace.jobs] == [
        (6_500_000_000, 10.0, 1),
        (7_000_000_000, 2.0, 4),
    ]
    assert trace.jobs[0].spec.workload == "a (batch size 16)"
    assert "run times are those on fast GPUs" in trace.notes[0] and "simulation_throughputs.json" in trace.notes[0]


def test_gavel_lines_that_cannot_be_used_are_refused_with_the_reason(gavel: Callable[[str], Trace]) -> None:
    trace = gavel(
        MSR.format(steps=1, gpus=1, at=0)
        + MSR.format(steps=1, gpus=2, at=0)
        + MSR.format(steps="x", gpus=1, at=0)
        + "a\tb\tc\n"
    )
    assert [one.reason for one in trace.refused] == [
        "line 2, column job_type: 'a (batch size 16)' was not measured with 2 fast GPUs",
        "line 3, column steps: 'x' is not a number",
        "line 4, column 3: 3 cells instead of 10 or 7",
    ]


def test_gavel_without_throughputs_says_which_file_to_add(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "c" / "d" / "x.trace"
    file.parent.mkdir(parents=True)
    file.write_text(MSR.format(steps=1, gpus=1, at=0))
    with pytest.raises(TraceError, match=r"needs the measured throughputs: put physical_cluster_throughputs.json or"):
        read_trace(file, "gavel")


def test_throughputs_are_real_speeds_and_speeds_of_pairs(tmp_path: Path) -> None:
    file = tmp_path / "throughputs.json"
    file.write_text(json.dumps(THROUGHPUTS, indent=4))
    assert is_gavel(file) and not is_gavel(tmp_path)
    found = read_gavel(file)
    speeds = found.speeds
    assert found.reference == "fast" and speeds.usual == {"a (batch size 16)": "fast", "b": "fast"}
    assert speeds.rate("a (batch size 16)", "slow", 4, 0) == pytest.approx(6.0)
    assert [speeds.rate("a (batch size 16)", "fast", 4, level) for level in (0, 1)] == pytest.approx([32.0, 16.0])
    assert speeds.rate("b", "slow", 1, 0) is None, "a rate of 0 means that it does not run there"
    pairs = read_pair_speeds(file)
    assert pairs["fast"]["a (batch size 16)"] == pytest.approx({"b": 0.8, "a (batch size 16)": 0.5})
    assert pairs["fast"]["b"] == {"a (batch size 16)": 1.0}, "a measured gain counts as full speed"
    assert pairs["slow"] == {"a (batch size 16)": {"b": 0.5}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "the file: is not a JSON object"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "contains no speed"),
        ('{"v100": 1}', "v100: is not a JSON object"),
        ('{"v100": {"a": {}}}', r"v100: the key 'a' is not \('JOB TYPE', GPUS\)"),
        ('{"v100": {"(\'a\', 0)": {}}}', r"is not \('JOB TYPE', GPUS\)"),
        ('{"v100": {"(\'a\', 1)": []}}', r"v100, \('a', 1\): is not a JSON object"),
        ('{"v100": {"(\'a\', 1)": {"null": "1"}}}', "null: the rate is not a number"),
        ('{"v100": {"(\'a\', 1)": {"null": -1}}}', "a rate of -1 is not from"),
        ('{"v100": {"(\'a\', 1)": {"null": 1, "(\'b\', 1)": [1]}}}', "must be two rates"),
        ('{"v100": {"(\'a\', 1)": {"null": NaN}}}', "the rate is not a number"),
    ],
)
def test_bad_throughputs_are_refused_with_their_place(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "t.json"
    file.write_text(text)
    with pytest.raises(TraceError, match=reason):
        read_gavel(file)


def test_throughputs_are_the_speeds_of_a_simulation(tmp_path: Path) -> None:
    """A job of 100 s on the fast type takes 500 s on a cluster of the slow one."""
    (tmp_path / "gavel-throughputs.json").write_text(json.dumps(THROUGHPUTS))
    (tmp_path / "x.trace").write_text(MSR.format(steps=1000, gpus=1, at=0))
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("node,slots,gpu_type\nn0,1,slow\n")
    options = ["--jobs", str(tmp_path / "x.trace"), "--format", "gavel", "--nodes", str(nodes), "--json"]
    done = CliRunner().invoke(cli, ["simulate", *options, "--speeds", str(tmp_path / "gavel-throughputs.json")])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["avg_jct_seconds"] == pytest.approx(500.0)


# --- Sia -------------------------------------------------------------------------------------------------------------

SIA = "name,time,application,num_replicas,batch_size\n"


@pytest.fixture
def sia(tmp_path: Path) -> Path:
    """Return the path of a workload beside measurements of one model: a step takes 1 s for each 64 samples of a rank,
    and 1 s more on several nodes."""
    folder = tmp_path / "traces" / "cifar10"
    folder.mkdir(parents=True)
    for suffix in ("aws", "rtx", "dgx-ext"):
        alone = "".join(f"{ranks},{size},{size / 64},0.0\n" for ranks in (1, 2, 4) for size in (32, 64, 128))
        (folder / f"placements-{suffix}.csv").write_text("placement,local_bsz,step_time,sync_time\n" + alone)
        many = "".join(f"2,8,{size},{size / 64 + 1},1.0\n" for size in (32, 64, 128))
        (folder / f"scalability-{suffix}.csv").write_text(
            "num_nodes,num_replicas,local_bsz,step_time,sync_time\n" + many
        )
    for batch, steps in ((128, 40), (512, 10)):
        epochs = "".join(f"{0.0},{steps * (epoch + 1)},0.9\n" for epoch in range(100))
        (folder / f"validation-{batch}.csv").write_text("progress,iteration,metric\n" + epochs)
    return tmp_path / "workloads" / "philly" / "workload-1.csv"


def _sia(path: Path, lines: str) -> Trace:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SIA + lines)
    return read_trace(path, "sia")


def test_sia_jobs_train_their_model_with_their_batch(sia: Path) -> None:
    trace = _sia(sia, "a,10.5,cifar10,1,128\nb,11,cifar10,4,512\nc,12,cifar10,8,512\n")
    a, b, c = trace.jobs
    # 4,000 steps of 128 samples, each 2 s; 1,000 steps of 512, each 2 s on 4 ranks; on 8 ranks 1 s + 1 s.
    assert [job.run_seconds for job in (a, b, c)] == pytest.approx([8000, 2000, 2000])
    assert (a.submitted_ns, a.job_id, a.spec.workload, a.spec.ranks) == (10_500_000_000, "a", "cifar10-128", 1)
    assert (a.spec.restart_cost_seconds, a.spec.restartable) == (50.0, True)
    assert "run times are those on T4 GPUs, four on a node" in trace.notes[0]


def test_sia_jobs_between_two_measured_batches(sia: Path) -> None:
    # Half of the way from 128 to 512: 2,500 steps of 320 samples on 4 ranks with 80 each, 1.25 s.
    assert _sia(sia, "a,0,cifar10,4,320\n").jobs[0].run_seconds == pytest.approx(2500 * 1.25)


def test_sia_jobs_that_cannot_be_used_are_refused_with_the_reason(sia: Path) -> None:
    trace = _sia(sia, "a,0,cifar10,1,128\nb,0,gpt9,1,128\nc,0,cifar10,0,128\nd,0,cifar10,4,16\ne,0,bert,1,12\n")
    assert [one.reason.partition(" is not one of")[0] for one in trace.refused] == [
        "line 3, column application: 'gpt9'",
        "line 4, column num_replicas: 0 is less than 1",
        "line 5, column batch_size: cifar10 was not measured with a batch of 16 on t4 GPUs",
        f"line 6, column application: the measurements have no folder {sia.parents[2] / 'traces' / 'bert'}",
    ]


def test_sia_without_measurements_says_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="put the folder sia-simulator/traces of siasosp23/artifacts into"):
        _sia(tmp_path / "a" / "b" / "c" / "d" / "w.csv", "a,0,cifar10,1,128\n")


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("validation-128.csv", "progress,iteration\n1,2\n", "has 1 epochs; 100 are needed"),
        ("validation-x.csv", "progress,iteration\n1,2\n", "the name is not validation-BATCH.csv"),
        ("placements-aws.csv", "placement,local_bsz,step_time,sync_time\nx,1,1,1\n", "is not the ranks of each node"),
        (
            "placements-aws.csv",
            "placement,local_bsz,step_time,sync_time\n1,1,0,0\n",
            "column step_time: 0 is less than",
        ),
        ("scalability-rtx.csv", "a\n", "no column 'num_nodes'"),
        ("scalability-aws.csv", "num_nodes,num_replicas,local_bsz,step_time,sync_time\n1\n", "1 cells under a header"),
    ],
)
def test_damaged_measurements_are_refused_with_their_place(sia: Path, name: str, text: str, reason: str) -> None:
    (sia.parents[2] / "traces" / "cifar10" / name).write_text(text)
    with pytest.raises(TraceError, match=f"{name}.*{reason}"):
        _sia(sia, "a,0,cifar10,1,128\n")
