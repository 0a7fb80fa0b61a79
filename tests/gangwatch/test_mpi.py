"""Jobs with a real mpirun, of Open MPI and of MPICH, started by the templates."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import needs
from tests.gangwatch.front_door import FrontDoor, front_door, wait_until

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("mpi")]

LAUNCHERS = {
    "openmpi": ("mpirun.openmpi", "openmpi-bin libopenmpi-dev"),
    "mpich": ("mpirun.mpich", "mpich libmpich-dev"),
}

PROGRAM = r"""
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words) {
    int rank, size, sum, code = 0;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d is rank %s of its job, sum %d\n", rank, size, getenv("RANK"), sum);
    fflush(stdout);
    if (count > 1 && !strcmp(words[1], "fail") && rank == 1) return 7;
    if (count > 1 && !strcmp(words[1], "abort") && rank == 1) MPI_Abort(MPI_COMM_WORLD, 5);
    if (count > 1) sleep(600);
    MPI_Finalize();
    return code;
}
"""

TRAINING = """
import os, signal, sys, time
from mpi4py import MPI
from gangwatch import steps

world, reporter = MPI.COMM_WORLD, steps.reporter()
path = f"{sys.argv[1]}.{world.rank}"
first = int(open(path).read()) if os.path.exists(path) else 0
stopped = []
signal.signal(signal.SIGUSR1, lambda *_: stopped.append(True))
print("starts at", first, flush=True)
for number in range(first, first + 10_000):
    with reporter.step(number=number):
        time.sleep(0.05)
        with reporter.wait():
            stop = world.allreduce(bool(stopped), op=MPI.LOR)
    if number == first + 5:
        print("step 5", reporter.status, flush=True)
    if stop:
        open(path, "w").write(str(number + 1))
        print("saved", number + 1, flush=True)
        break
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Compile the program for each implementation of MPI."""
    folder = tmp_path_factory.mktemp("mpi")
    (folder / "program.c").write_text(PROGRAM)
    for name, (launcher, packages) in LAUNCHERS.items():
        needs.component(launcher, packages)
        compiler = needs.component(f"mpicc.{name}", packages)
        subprocess.run([compiler, "-o", str(folder / name), str(folder / "program.c")], check=True)
    return {name: folder / name for name in LAUNCHERS}


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontDoor]:
    folder = tmp_path_factory.mktemp("door")
    with front_door(folder) as opened:
        # Longer than the path of a socket may be.
        opened.environment["TMPDIR"] = str(folder / ("t" * 100))
        Path(opened.environment["TMPDIR"]).mkdir()
        opened.up()
        yield opened


def submit(door: FrontDoor, name: str, ranks: int, *words: str) -> str:
    """Submit a job of the template mpi."""
    options = ["--template", "mpi", "--set", f"mpirun={LAUNCHERS[name][0]}", "--ranks", str(ranks)]
    return door.submit(*options, "--", *words)


def output(door: FrontDoor, job: str) -> str:
    return door.run("logs", job, code=None).stdout


@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize("name", LAUNCHERS)
def test_each_process_is_the_rank_with_its_number(
    door: FrontDoor, programs: dict[str, Path], name: str, ranks: int
) -> None:
    job = submit(door, name, ranks, str(programs[name]))
    assert door.wait_for(job, "completed", "failed")["state"] == "completed", output(door, job)
    total = sum(range(ranks))
    # `logs` shows the output of each rank: what process i printed is in the output of rank i.
    for rank in range(ranks):
        assert f"{rank}: rank {rank} of {ranks} is rank {rank} of its job, sum {total}\n" in output(door, job)
    assert not list(Path(door.environment["TMPDIR"]).glob("gangwatch-mpi-*")), "the folder is removed"


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_rank_whose_program_failed_is_named(door: FrontDoor, programs: dict[str, Path], name: str) -> None:
    job = submit(door, name, 3, str(programs[name]), "fail")
    found = door.wait_for(job, "completed", "failed")
    assert (found["state"], found["reason"]) == ("failed", "rank 1 exited with 7"), output(door, job)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_an_abort_ends_all_ranks(door: FrontDoor, programs: dict[str, Path], name: str) -> None:
    job = submit(door, name, 3, str(programs[name]), "abort")
    assert door.wait_for(job, "completed", "failed")["state"] == "failed"
    wait_until(lambda: not running(programs[name]), lambda: f"left over: {running(programs[name])}")


def running(program: Path) -> list[int]:
    """Return the processes that execute the program."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "exe").readlink() == program:
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_killed_process_fails_the_job_and_a_cancelled_job_leaves_nothing(
    door: FrontDoor, programs: dict[str, Path], name: str
) -> None:
    job = submit(door, name, 2, str(programs[name]), "wait")
    wait_until(lambda: "1: rank 1 of 2" in output(door, job), lambda: output(door, job))
    victim = next(pid for pid in running(programs[name]) if b"RANK=1\0" in environ(pid))
    os.kill(victim, signal.SIGKILL)
    found = door.wait_for(job, "completed", "failed")
    assert (found["state"], found["reason"]) == ("failed", "rank 1 was killed by SIGKILL")
    job = submit(door, name, 2, str(programs[name]), "wait")
    wait_until(lambda: "1: rank 1 of 2" in output(door, job), lambda: output(door, job))
    door.run("cancel", job)
    door.wait_for(job, "cancelled")
    assert not running(programs[name])


def environ(pid: int) -> bytes:
    return b"\0" + Path(f"/proc/{pid}/environ").read_bytes()


def test_the_job_fails_if_mpirun_is_killed(door: FrontDoor, programs: dict[str, Path]) -> None:
    job = submit(door, "openmpi", 2, str(programs["openmpi"]), "wait")
    wait_until(lambda: "1: rank 1 of 2" in output(door, job), lambda: output(door, job))
    launcher = Path(needs.component("mpirun.openmpi", LAUNCHERS["openmpi"][1])).resolve()
    for pid in running(launcher):
        os.kill(pid, signal.SIGKILL)
    assert door.wait_for(job, "completed", "failed")["state"] == "failed"
    assert not running(programs["openmpi"])


@pytest.mark.parametrize(
    ("mpirun", "message"),
    [
        ("no-such-mpirun", "no-such-mpirun does not start"),
        ("false", "names neither Open MPI nor MPICH"),
        ("mpirun.openmpi --no-such-option", "unknown option"),
        ("mpirun.openmpi --mca plm none", "mpirun ended with"),
    ],
)
def test_a_launcher_that_does_not_start_is_named(
    door: FrontDoor, programs: dict[str, Path], mpirun: str, message: str
) -> None:
    options = ["--template", "mpi", "--set", f"mpirun={mpirun}", "--ranks", "2"]
    job = door.submit(*options, "--", str(programs["openmpi"]))
    door.wait_for(job, "failed")
    assert message in output(door, job)


def test_a_program_that_does_not_exist_is_named(door: FrontDoor, programs: dict[str, Path]) -> None:
    job = submit(door, "openmpi", 2, str(programs["openmpi"].with_name("none")))
    door.wait_for(job, "failed")
    assert "none does not start: No such file or directory" in output(door, job)


def test_a_training_reports_its_steps_and_saves_when_it_is_stopped(door: FrontDoor, tmp_path: Path) -> None:
    needs.component("mpirun.openmpi", LAUNCHERS["openmpi"][1])
    python = needs.python_with("mpi4py", "python3-mpi4py")
    training = tmp_path / "training.py"
    training.write_text(TRAINING)

    def starts() -> list[int]:
        """Run the training until it is stopped, and return the step from which each rank started."""
        job = door.submit(
            *("--template", "mpi", "--set", "mpirun=mpirun.openmpi", "--ranks", "2", "--checkpoint-signal", "SIGUSR1"),
            *("--env", f"PYTHONPATH={REPOSITORY}", "--", python, str(training), str(tmp_path / "state")),
        )
        wait_until(lambda: output(door, job).count("step 5 registered") == 2, lambda: output(door, job))
        door.run("cancel", job)
        assert door.wait_for(job, "cancelled")["ranks"][0]["exit_code"] == 0, output(door, job)
        written = output(door, job)
        assert written.count("saved") == 2, "both ranks got the signal, and saved"
        return [int(line.rpartition(" ")[2]) for line in written.splitlines() if "starts at" in line]

    assert starts() == [0, 0]
    assert min(starts()) > 5
