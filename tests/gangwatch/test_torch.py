"""Step reports of real torch trainings on CPUs with gloo."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from agent.collectors.steps.rank_progress import Progress
from agent.schema.frame import Member, StepRecord
from agent.sources.steps.step_connection import Admission
from agent.sources.steps.step_socket import StepSocket
from agent.sources.steps.tenants import Tenant
from tests import needs
from tests.ports import held_port

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = str(REPOSITORY / "examples" / "train_torch.py")
SMALL = ["--hidden", "24", "--batch", "32"]

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.fixture(scope="module")
def python() -> str:
    return needs.python_with("torch", "python3-torch")


class Gang:
    """Trainings whose ranks report to the test's step socket."""

    def __init__(self, python: str, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.python = python
        self.environment = {"PYTHONPATH": str(REPOSITORY), **(environment or {})}
        self.folder = folder
        self.path = str(folder / "run" / "n.sock")
        self.agent = StepSocket(
            self.path,
            lambda peer, claim, waited: Admission(Member("g", 0, claim.rank or 0), Tenant("job", "g")),
        )
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, ranks: int, *arguments: str, watched: bool = True) -> list[subprocess.Popen[str]]:
        port = held_port()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GANGWATCH_")}
        if watched:
            environment["GANGWATCH_SOCKET"] = self.path
        gang = [
            subprocess.Popen(
                [self.python, *arguments],
                env={
                    **environment,
                    **self.environment,
                    "OMP_NUM_THREADS": "1",
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
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
        self.processes.extend(gang)
        return gang

    def run(self, ranks: int, *arguments: str, watched: bool = True) -> list[str]:
        """Run a training to its end. Return what the ranks printed."""
        printed: list[str] = []
        for process in self.start(ranks, *arguments, watched=watched):
            output, errors = process.communicate(timeout=200)
            assert process.returncode == 0, errors
            printed.append(output)
        return printed

    def script(self, content: str) -> str:
        path = self.folder / "training.py"
        path.write_text(textwrap.dedent(content))
        return str(path)

    def steps(self) -> dict[int, list[StepRecord]]:
        """Return the finished steps of every rank. Assert that each collective that was entered was left."""
        found: dict[int, list[StepRecord]] = {}
        for registered in self.agent.registered():
            progress = Progress(registered.member, 0)
            records = [progress.fold(record) for record in registered.ring.read(time.monotonic_ns())]
            assert progress.entered == progress.left
            assert registered.ring.malformed == registered.ring.lost == 0
            found[registered.member.rank] = [record for record in records if record is not None]
        return found

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        self.agent.close()


@pytest.fixture
def gang(python: str, tmp_path: Path) -> Iterator[Gang]:
    made = Gang(python, tmp_path)
    yield made
    made.close()


HEAD = """
    import os, sys, time
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    rank = int(os.environ["RANK"])
    torch.manual_seed(1)
    bare = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))

    class Slow(torch.autograd.Function):
        "Costs time in the backward pass of one rank."
        @staticmethod
        def forward(context, value):
            return value.clone()
        @staticmethod
        def backward(context, gradient):
            time.sleep(0.03 if rank == 1 else 0)
            return gradient

    def train(model, optimizer, steps=10):
        for step in range(steps):
            optimizer.zero_grad()
            Slow.apply(model(torch.randn(16, 32))).sum().backward()
            optimizer.step()
"""


# torch's Python hooks can abort a process that exits with its process group alive: gloo's threads drop the callback
# after the interpreter has gone (our threads are joined). Scripts with such a hook exit without the process group.
LEAVE = """
    sys.stdout.flush()
    os._exit(0)
"""


def test_the_example_reports_steps_without_changing_its_results(gang: Gang, tmp_path: Path) -> None:
    watched, unwatched = tmp_path / "watched.json", tmp_path / "unwatched.json"
    arguments = [EXAMPLE, *SMALL, "--steps", "12", "--result"]
    printed = gang.run(3, *arguments, str(watched))
    assert "registered; waits of collectives are measured" in printed[0]
    gang.run(3, *arguments, str(unwatched), watched=False)
    # With three ranks another way to average would show, because 1/3 has no exact binary form.
    assert json.loads(watched.read_text())["weights_sha256"] == json.loads(unwatched.read_text())["weights_sha256"]
    found = gang.steps()
    assert sorted(found) == [0, 1, 2]
    for records in found.values():
        assert [record.step for record in records] == list(range(1, 12))
        for record in records:
            assert record.wait_ns is not None and 0 <= record.wait_ns <= record.duration_ns
            assert record.collectives >= 1


def test_the_slow_rank_waits_least(gang: Gang) -> None:
    script = gang.script(
        HEAD
        + """
    from gangwatch.torch import attach
    dist.init_process_group("gloo")
    model = DistributedDataParallel(bare)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    attach(model, optimizer)
    train(model, optimizer, 20)
    """
    )
    gang.run(2, script)
    waits = {rank: [record.wait_ns for record in records] for rank, records in gang.steps().items()}
    median = {rank: statistics.median(wait for wait in each if wait is not None) for rank, each in waits.items()}
    assert median[0] > 20_000_000 > median[1]


def test_tokens_add_up_over_the_batches_of_a_step(gang: Gang) -> None:
    script = gang.script(
        HEAD
        + """
    from gangwatch.torch import attach
    dist.init_process_group("gloo")
    model = DistributedDataParallel(bare)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watched = attach(model, optimizer)
    for step in range(5):
        for lengths in ([100, 28], [64 * (rank + 1)]):
            watched.given(tokens=sum(lengths), squares=sum(length * length for length in lengths))
        train(model, optimizer, 1)
    watched.given(tokens="many")
    assert watched.failures == 1
    """
    )
    gang.run(2, script)
    for rank, records in gang.steps().items():
        assert [(record.tokens, record.squares) for record in records] == [
            (128 + 64 * (rank + 1), 100**2 + 28**2 + (64 * (rank + 1)) ** 2)
        ] * 4


def test_an_unmodified_program_reports_its_steps(gang: Gang) -> None:
    # With its own hook, a scheduler that unwraps the optimizer's step, and a second optimizer.
    script = gang.script(
        HEAD
        + """
    import __main__
    assert __main__.train is train and sys.argv[1:] == ["--flag"], sys.argv
    assert sys.path[0] == os.path.dirname(os.path.abspath(__file__))
    dist.init_process_group("gloo")
    model = DistributedDataParallel(bare)
    called = []

    def own_hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        called.append(state)
        tensor = bucket.buffer().div_(2)
        return dist.all_reduce(tensor, async_op=True).get_future().then(lambda future: future.value()[0])

    model.register_comm_hook("state", own_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    other = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(6):
        train(model, optimizer, 1)
        other.step()
        scheduler.step()
    assert set(called) == {"state"} and len(called) >= 6
    print("own hook called")
    """
        + LEAVE
    )
    printed = gang.run(2, "-m", "gangwatch.torch", script, "--flag")
    assert all("own hook called" in output for output in printed)
    found = gang.steps()
    for rank in (0, 1):
        assert [record.step for record in found[rank]] == list(range(1, 6))
        assert all(record.wait_ns is not None for record in found[rank])


@pytest.mark.parametrize(
    ("watching", "why"),
    [
        ("attach(bare, optimizer)", "a DistributedDataParallel was made before attach"),
        ("model.register_comm_hook(None, allreduce); attach(model, optimizer)", "DDP took no hook"),
        (
            "attach(model, optimizer); a.reporter.enter = lambda: 1 / 0",
            "ZeroDivisionError",
        ),
    ],
)
def test_a_wait_that_cannot_be_measured_is_unknown(watching: str, why: str, gang: Gang) -> None:
    script = gang.script(
        HEAD
        + f"""
    import gangwatch.torch
    from gangwatch.torch import attach as real_attach
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook as allreduce

    def attach(*arguments):
        global a
        a = real_attach(*arguments)

    dist.init_process_group("gloo")
    model = DistributedDataParallel(bare)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    {watching}
    train(model, optimizer, 5)
    print(a.status)
    """
        + (LEAVE if "register_comm_hook" in watching else "")
    )
    printed = gang.run(2, script)
    assert why in printed[0]
    for records in gang.steps().values():
        assert [record.step for record in records] == [1, 2, 3, 4]
        assert {record.wait_ns for record in records} == {None}


def test_without_a_socket_torch_is_not_patched(gang: Gang) -> None:
    script = gang.script(
        HEAD
        + """
    import atexit
    made, register = DistributedDataParallel.__init__, DistributedDataParallel.register_comm_hook
    construct = torch.optim.Optimizer.__init__
    from gangwatch.torch import attach
    attachment = attach()
    assert attachment.status.startswith("off: GANGWATCH_SOCKET")
    assert DistributedDataParallel.__init__ is made
    assert DistributedDataParallel.register_comm_hook is register
    assert torch.optim.Optimizer.__init__ is construct
    """
    )
    gang.run(1, script, watched=False)


def test_the_program_runs_as_with_plain_python(gang: Gang) -> None:
    script = gang.script("import sys\nsys.exit(7)\n")
    (process,) = gang.start(1, "-m", "gangwatch.torch", script)
    assert process.wait(60) == 7
    (process,) = gang.start(1, "-m", "gangwatch.torch", "-m", "json.tool", "--help")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "json" in output
    (process,) = gang.start(1, "-m", "gangwatch.torch")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "usage" in errors


def test_the_example_stops_saves_and_resumes_exactly(gang: Gang, tmp_path: Path) -> None:
    def arguments(name: str) -> list[str]:
        files = ["--checkpoint", str(tmp_path / f"{name}.pt"), "--result", str(tmp_path / f"{name}.json")]
        return [EXAMPLE, *SMALL, "--steps", "20", "--checkpoint-every", "4", *files]

    gang.run(2, *arguments("whole"))
    ranks = gang.start(2, *arguments("parts"), "--pace-seconds", "0.1")
    assert ranks[0].stdout is not None and ranks[0].stdout.readline().startswith("step 4 ")
    ranks[1].send_signal(signal.SIGTERM)
    for process in ranks:
        process.communicate(timeout=100)
    assert [process.returncode for process in ranks] == [75, 75]
    gang.run(2, *arguments("parts"))
    whole, parts = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("whole", "parts"))
    assert 4 <= parts["resumed_from"] < 20
    assert parts["weights_sha256"] == whole["weights_sha256"]


def test_the_example_ends_when_a_peer_is_gone(gang: Gang) -> None:
    ranks = gang.start(2, EXAMPLE, *SMALL, "--checkpoint-every", "2", "--pace-seconds", "0.1")
    assert ranks[0].stdout is not None and ranks[0].stdout.readline()
    ranks[1].kill()
    _, errors = ranks[0].communicate(timeout=100)
    assert ranks[0].returncode == 1
    assert "train_torch: rank 0: " in errors


def test_a_lagging_device_is_polled_and_never_waited_for(gang: Gang) -> None:
    # There is no GPU here: marks that the script completes replace the CUDA events; everything else is real.
    script = gang.script(
        HEAD
        + """
    import gangwatch.torch
    from gangwatch.torch import attach

    now_ms, reached_ms = 0, 0

    class Mark:
        def __init__(self, tensor):
            self.at_ms = now_ms
        def passed(self):
            return self.at_ms <= reached_ms
        def ns_since(self, earlier):
            return (self.at_ms - earlier.at_ms) * 1_000_000

    class Bucket:
        def __init__(self, last):
            self.last = last
        def buffer(self):
            return torch.zeros(1)
        def is_last(self):
            return self.last

    class Future:
        def value(self):
            return [torch.zeros(1)]

    gangwatch.torch._mark = Mark
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.01)
    attachment = attach(bare, optimizer)
    while attachment.reporter.status != "registered":
        time.sleep(0.01)
    reported = []
    report = attachment.reporter.report
    attachment.reporter.report = lambda *a, **k: (reported.append(a[:3]), report(*a, **k))
    attachment.step_ended(optimizer)
    for step in range(3):
        for last in (False, True):
            now_ms += 10
            begun = attachment._begin_bucket(Bucket(last))
            now_ms += 3                      # the bucket is averaged 3 ms later, and the last one another 20
            if last:
                now_ms += 20
            attachment._end_bucket(begun, torch.zeros(1), Future())
        now_ms += 4
        attachment.step_ended(optimizer)
        assert reported == [], "the device has not got there"
    reached_ms = 50
    attachment._poll()
    assert reported == [(1, 0.05, 0.023)], reported
    reached_ms = 1000
    attachment.finish()
    assert reported == [(step, 0.05, 0.023) for step in (1, 2, 3)], reported
    for _ in range(gangwatch.torch.MAX_PENDING_STEPS + 5):
        now_ms += 100_000
        attachment.step_ended(optimizer)
    assert len(attachment._pending) == gangwatch.torch.MAX_PENDING_STEPS
    assert len(reported) == 8 and reported[-1][0] == 8 and reported[-1][2:] == (), reported
    assert attachment.failures == 0, attachment.status
    """
    )
    gang.run(1, script)
    assert [(record.step, record.wait_ns) for record in gang.steps()[0]][:4] == [
        (1, 23_000_000),
        (2, 23_000_000),
        (3, 23_000_000),
        (4, None),
    ]
