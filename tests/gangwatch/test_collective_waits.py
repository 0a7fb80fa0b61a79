"""Waits of real torch trainings on CPUs with gloo that do not average through DDP: FSDP2, a pipeline, plain calls."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.schema.frame import StepRecord
from tests import needs
from tests.gangwatch.forked_ranks import ForkedRanks
from tests.gangwatch.test_torch import REPOSITORY, Gang
from tests.ports import held_port

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow, pytest.mark.xdist_group("collective-waits")]

IMPORTED = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.pipelining")
"""Modules that the programs import, or an optimizer in its first step."""

SLOW_SECONDS = 0.06
STEPS = 12

HEAD = """
    import json, os, time
    import torch, torch.distributed as dist
    from torch import nn
    from gangwatch.torch import attach
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    attachment = attach()
    dist.init_process_group("gloo")

    def slow(step):
        if rank == 1:
            time.sleep(0.06)

    def finish():
        print(json.dumps({"status": attachment.status, "failures": attachment.collectives.failures}))
        dist.destroy_process_group()
"""

FSDP2 = """
    from torch.distributed.fsdp import fully_shard
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(13):
        slow(step)
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    finish()
"""

LOOP = """
    weight = torch.ones(64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.01)
    for step in range(13):
        slow(step)
        weight.square().sum().backward()
        dist.all_reduce(weight.grad)
        optimizer.step()
        optimizer.zero_grad()
    finish()
"""

ASYNCHRONOUS = LOOP.replace(
    "dist.all_reduce(weight.grad)",
    "work = dist.all_reduce(weight.grad, async_op=True); time.sleep(0.02); work.wait()",
)

PIPELINE = """
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    model = nn.Linear(64, 64)
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda made, wanted: (made - wanted).square().mean())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batch = torch.randn(8, 64)
    for step in range(13):
        slow(step)
        if rank == 0:
            schedule.step(batch)
        else:
            schedule.step(target=batch)
        optimizer.step()
        optimizer.zero_grad()
    finish()
"""


class ForkedGang(Gang):
    """Trainings whose ranks are forked from a process that has imported torch."""

    def __init__(self, python: str, folder: Path, forked: ForkedRanks) -> None:
        super().__init__(python, folder)
        self._forked = forked

    def run(self, ranks: int, *arguments: str, watched: bool = True) -> list[str]:
        environment = {"GANGWATCH_SOCKET": self.path} if watched else {}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held_port())}
        (script,) = arguments
        return self._forked.run(script, ranks, environment)


@pytest.fixture(scope="module")
def forked() -> Iterator[ForkedRanks]:
    with ForkedRanks(needs.cpu_torch(), IMPORTED, str(REPOSITORY)) as ranks:
        yield ranks


@pytest.fixture
def gang(forked: ForkedRanks, tmp_path: Path) -> Iterator[Gang]:
    made = ForkedGang(needs.cpu_torch(), tmp_path, forked)
    yield made
    made.close()


def waits(gang: Gang, ranks: int, program: str) -> dict[int, list[StepRecord]]:
    for printed in gang.run(ranks, gang.script(HEAD + program)):
        said = json.loads(printed)
        assert said["failures"] == 0
        assert said["status"].endswith("waits of collectives are measured")
    return gang.steps()


@pytest.mark.parametrize("program", [FSDP2, LOOP, ASYNCHRONOUS, PIPELINE], ids=["fsdp2", "loop", "async", "pipeline"])
def test_the_slow_rank_waits_least_and_the_others_for_it(gang: Gang, program: str) -> None:
    ranks = 2 if program is PIPELINE else 3
    found = waits(gang, ranks, program)
    median = {}
    for rank, records in found.items():
        assert [record.step for record in records] == list(range(1, STEPS + 1))
        known = [record.wait_ns for record in records]
        assert all(wait is not None and wait <= record.duration_ns for wait, record in zip(known, records, strict=True))
        median[rank] = statistics.median(wait / 1e9 for wait in known if wait is not None)
    hidden = 0.02 if program is ASYNCHRONOUS else 0.0
    assert min(median, key=lambda rank: median[rank]) == 1
    for rank, seconds in median.items():
        if rank != 1:
            assert seconds - median[1] > 0.7 * (SLOW_SECONDS - hidden), median


def test_waits_are_unknown_if_a_ddp_model_was_made_before_attach(gang: Gang) -> None:
    """Its collectives are issued in C++. A wait without them would be wrong."""
    program = HEAD.replace("attachment = attach()", "attachment = None")
    program += """
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    attachment = attach()
    loss = torch.zeros(1)
    for step in range(4):
        model(torch.randn(8, 8)).square().mean().backward()
        dist.all_reduce(loss)
        optimizer.step()
    finish()
    """
    for printed in gang.run(2, gang.script(program)):
        assert json.loads(printed)["status"].endswith(
            "waits are unknown: a DistributedDataParallel was made before attach"
        )
    assert [record.wait_ns for records in gang.steps().values() for record in records] == [None] * 6


def test_a_waiting_rank_describes_its_collective(gang: Gang) -> None:
    program = """
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(4), group=group)
    if rank == 0:
        import threading
        threading.Timer(0.5, lambda: print(json.dumps(attachment.collectives.in_progress()), flush=True)).start()
    else:
        time.sleep(1.0)
    dist.all_reduce(torch.ones(16), group=group)
    dist.destroy_process_group()
    """
    printed = gang.run(2, gang.script(HEAD + program))
    found = json.loads(printed[0])
    assert found["operation"] == "all_reduce"
    assert found["ranks"] == "0-1"
    assert (found["sequence"], found["bytes"]) == (1, 64)


def test_a_rank_that_waits_in_c_describes_its_collective(gang: Gang) -> None:
    """DDP issues and awaits its collectives in C++: only PyTorch's flight recorder has them."""
    program = (
        HEAD.replace("attachment = attach()", "")
        + """
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    attachment = attach()
    if rank == 0:
        import threading
        from gangwatch.reporting import flight_recorder
        answer = lambda: flight_recorder.merged(attachment.collectives.in_progress())
        threading.Timer(1.0, lambda: print(json.dumps(answer()), flush=True)).start()
    else:
        time.sleep(3.0)
    model(torch.ones(2, 4)).sum().backward()
    assert flight_recorder.in_progress()[0] == [] if rank == 0 else True
    dist.destroy_process_group()
    """
    )
    found = json.loads(gang.run(2, gang.script(program))[0])
    assert (found["operation"], found["group"], found["ranks"]) == ("all_reduce", "0 (default_pg)", "0-1")
    assert found["sequence"] > 1  # after those of DDP's constructor
    assert found["bytes"] == 80
