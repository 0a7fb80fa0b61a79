"""Example training: an interruption changes no bit of its result, and no rank hangs when another dies."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.schema.frame import Member
from agent.sources.steps import rings
from agent.sources.steps.step_connection import Admission
from agent.sources.steps.step_socket import StepSocket
from agent.sources.steps.tenants import Tenant
from examples import train_dp
from tests.ports import held_port

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "train_dp.py"
SMALL = ["--hidden", "24", "--batch", "64"]

Start = Callable[..., list[subprocess.Popen[str]]]


@contextmanager
def trainings() -> Iterator[Start]:
    """Yield a function that starts the ranks of a training. All of them end with the ``with``."""
    started: list[subprocess.Popen[str]] = []

    def start(ranks: int, *arguments: str, **environment: str) -> list[subprocess.Popen[str]]:
        port = held_port()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GANGWATCH_")}
        gang = [
            subprocess.Popen(
                [sys.executable, str(PROGRAM), *SMALL, *arguments],
                env={
                    **inherited,
                    **environment,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        started.extend(gang)
        return gang

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.communicate()


@pytest.fixture
def start() -> Iterator[Start]:
    with trainings() as start:
        yield start


def ended(gang: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Return exit code, output and error output of every rank."""
    results: list[tuple[int, str, str]] = []
    for process in gang:
        output, errors = process.communicate(timeout=60)
        results.append((process.returncode, output, errors))
    return results


def codes(gang: list[subprocess.Popen[str]]) -> list[int]:
    return [code for code, _, _ in ended(gang)]


def read(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text())
    assert isinstance(content, dict)
    return content


def wait_for_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the training ended before it said anything"
    return line


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a training of 3 ranks and 30 steps that was not interrupted."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    files = ["--checkpoint", str(folder / "checkpoint"), "--result", str(folder / "result.json")]
    with trainings() as start:
        assert codes(start(3, "--steps", "30", *files)) == [0, 0, 0]
    return folder


def test_the_network_learns_and_the_result_says_so(uninterrupted: Path) -> None:
    result = read(uninterrupted / "result.json")
    assert (result["finished"], result["steps"], result["steps_run"], result["resumed_from"]) == (True, 30, 30, 0)
    assert result["loss"]["last"] < 0.8 * result["loss"]["first"]
    assert result["step_seconds"] > 0


def test_stopped_by_sigterm_and_resumed_it_ends_with_the_same_bits(
    start: Start, uninterrupted: Path, tmp_path: Path
) -> None:
    checkpoint, result = tmp_path / "checkpoint", tmp_path / "result.json"
    training = ["--steps", "30", "--checkpoint", str(checkpoint), "--result", str(result), "--checkpoint-every", "5"]
    gang = start(3, *training, "--pace-seconds", "0.05")
    wait_for_line(gang[0])
    gang[1].send_signal(signal.SIGTERM)  # sent to one rank; all ranks stop after the same step
    assert codes(gang) == [75, 75, 75]
    stopped = read(result)
    assert not stopped["finished"]
    assert 5 <= stopped["steps"] < 30
    # Pace and frequency of checkpoints change nothing in the numbers.
    assert codes(start(3, *training[:6])) == [0, 0, 0]
    resumed = read(result)
    assert (resumed["resumed_from"], resumed["steps_run"]) == (stopped["steps"], 30 - stopped["steps"])
    assert resumed["weights_sha256"] == read(uninterrupted / "result.json")["weights_sha256"]
    digests = {hashlib.sha256(path.read_bytes()).digest() for path in (checkpoint, uninterrupted / "checkpoint")}
    assert len(digests) == 1


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_it_resumes_from_the_last_checkpoint_and_no_rank_hangs(
    victim: int, start: Start, uninterrupted: Path, tmp_path: Path
) -> None:
    training = ["--steps", "30", "--checkpoint", str(tmp_path / "checkpoint"), "--result", str(tmp_path / "result")]
    gang = start(3, *training, "--checkpoint-every", "5", "--pace-seconds", "0.05")
    wait_for_line(gang[0])
    gang[victim].kill()
    results = ended(gang)
    for rank, (code, _, errors) in enumerate(results):
        if rank == victim:
            assert code == -signal.SIGKILL
        else:
            assert code == 1
            assert errors.startswith(f"train_dp: rank {rank}: lost rank ")
            assert errors.count("\n") == 1
    assert codes(start(3, *training)) == [0, 0, 0]
    resumed = read(tmp_path / "result")
    assert resumed["resumed_from"] >= 5 and resumed["resumed_from"] % 5 == 0
    assert resumed["weights_sha256"] == read(uninterrupted / "result.json")["weights_sha256"]


def test_a_rank_that_stands_still_is_waited_for(start: Start, uninterrupted: Path, tmp_path: Path) -> None:
    gang = start(3, "--steps", "30", "--result", str(tmp_path / "result"), "--checkpoint-every", "5")
    wait_for_line(gang[0])
    gang[2].send_signal(signal.SIGSTOP)
    time.sleep(0.5)
    assert [process.poll() for process in gang] == [None, None, None]
    gang[2].send_signal(signal.SIGCONT)
    assert codes(gang) == [0, 0, 0]
    assert read(tmp_path / "result")["weights_sha256"] == read(uninterrupted / "result.json")["weights_sha256"]


def test_one_process_needs_no_environment(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    result = tmp_path / "result"
    arguments = [sys.executable, str(PROGRAM), *SMALL, "--steps", "3", "--result", str(result)]
    subprocess.run(arguments, env=environment, check=True, timeout=60, capture_output=True)
    assert read(result)["steps"] == 3


def test_a_checkpoint_of_another_training_is_refused_by_every_rank(
    start: Start, uninterrupted: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_bytes((uninterrupted / "checkpoint").read_bytes())
    before = checkpoint.read_bytes()
    training = ["--steps", "40", "--checkpoint", str(checkpoint)]
    (code, _, errors), (other, _, _) = ended(start(2, *training, "--seed", "1"))
    assert (code, other) == (1, 1)
    assert "of seed 0, hidden 24; this is seed 1, hidden 24" in errors
    assert codes(start(2, *training, "--hidden", "8")) == [1, 1]
    checkpoint.write_bytes(before[:-1])
    (code, _, errors), _ = ended(start(2, *training))
    assert code == 1 and "digest" in errors
    checkpoint.write_bytes(b"something else\n")
    (code, _, errors), _ = ended(start(2, *training))
    assert code == 1 and "no checkpoint of this program" in errors


def test_a_checkpoint_that_cannot_be_written_ends_the_training_on_every_rank(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    gang = start(2, "--steps", "5", "--checkpoint", str(tmp_path / "file" / "checkpoint"))
    for code, _, errors in ended(gang):
        assert code == 1 and "checkpoint" in errors and errors.count("\n") == 1


@pytest.mark.parametrize(
    ("environment", "said"),
    [({"RANK": "one"}, "RANK, WORLD_SIZE"), ({"RANK": "2", "WORLD_SIZE": "2"}, "rank 2 of 2")],
)
def test_a_wrong_environment_is_reported_in_one_line(environment: dict[str, str], said: str) -> None:
    tried = subprocess.run(
        [sys.executable, str(PROGRAM)], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )
    assert tried.returncode == 1
    assert said in tried.stderr and tried.stderr.count("\n") == 1


def test_sigterm_before_all_have_come_ends_it_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(silent.getsockname()[1])}
        with subprocess.Popen(
            [sys.executable, str(PROGRAM), "--checkpoint", str(tmp_path / "checkpoint")],
            env={**os.environ, **meeting, "RANK": "1", "WORLD_SIZE": "2"},
        ) as alone:
            connection, _ = silent.accept()
            with connection:
                alone.send_signal(signal.SIGTERM)
                assert alone.wait(60) == 75


def test_who_is_not_rank_0_is_recognised(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.settimeout(60)
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(stranger.getsockname()[1])}
        with subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            env={**os.environ, **meeting, "RANK": "1", "WORLD_SIZE": "2"},
            stderr=subprocess.PIPE,
            text=True,
        ) as alone:
            connection, _ = stranger.accept()
            with connection:
                connection.sendall(b'{"hello": 1}\n')
                _, errors = alone.communicate(timeout=60)
            assert alone.returncode == 1
            assert "is not rank 0" in errors and errors.count("\n") == 1


def test_numbers_that_arrive_with_a_rank_s_first_line_are_not_lost() -> None:
    """Seen on a busy machine: rank 1 read rank 0's line late, together with the first bytes of the training."""
    sender, receiver = socket.socketpair()
    with sender, receiver:
        numbers = b"\x00\x01\n\x02" * 3
        sender.sendall(b'{"token": "t", "rank": 0}\n' + numbers)
        deadline = time.monotonic() + 5.0
        said = train_dp._receive_line(receiver, "rank 0", train_dp.StopRequest(), deadline)
        assert said == {"token": "t", "rank": 0}
        assert receiver.recv(100) == numbers


def test_every_rank_reports_its_steps_and_waits(start: Start, tmp_path: Path) -> None:
    path = str(tmp_path / "run" / "n.sock")
    agent = StepSocket(
        path,
        lambda peer, claim, waited: Admission(Member(claim.gang or "", 0, claim.rank or 0), Tenant("job", "test")),
    )
    try:
        gang = start(2, "--steps", "40", "--pace-seconds", "0.02", GANGWATCH_SOCKET=path, GANGWATCH_JOB="j-000007")
        assert codes(gang) == [0, 0]
        found = agent.registered()
        assert {reporter.member for reporter in found} == {Member("j-000007", 0, 0), Member("j-000007", 0, 1)}
        for reporter in found:
            records = [record for record in reporter.ring.read(time.monotonic_ns()) if record.kind == rings.STEP_ENDED]
            assert [record.number for record in records] == list(range(40))
            assert {record.tokens for record in records} == {64}
            for record in records:
                assert record.duration_ns >= 20_000_000
                assert record.wait_ns is not None and record.wait_ns <= record.duration_ns - 20_000_000
    finally:
        agent.close()
