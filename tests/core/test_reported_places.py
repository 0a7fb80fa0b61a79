"""Places of ranks in the job's parallel layout, from the step reporter through the agent to the job's shape."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.collectors.steps.step_collector import StepCollector
from agent.node import Node
from agent.rank_attribution import Attribution
from agent.schema.clock import SystemClock
from agent.schema.frame import AnyLayout, Column, Frame, Layout, Member, StepRecord, Tier, make_layout
from exporter.prometheus.exposition import EVERYTHING
from exporter.publisher import Publisher
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.series.column_subscription import WANTED
from scheduler_feedback.core.telemetry.telemetry import Shape
from scheduler_feedback.core.telemetry.telemetry_update import Look
from scheduler_feedback.detectors.stats.group_intersection import intersected
from scheduler_feedback.detectors.steps.places import places
from scheduler_feedback.feed import Feed
from tests.agent.test_steps_collector import write_rank_file

RANKS = 8
TRAINING = """
import sys, time
from gangwatch import steps
reporter = steps.reporter()
print("up", flush=True)
for line in sys.stdin:
    with reporter.step(), reporter.wait():
        pass
"""


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Start eight processes of one job as a launch script does: two per tensor group, two replicas, two stages."""
    running: list[subprocess.Popen[str]] = []
    try:
        for rank in range(RANKS):
            environment = {
                **os.environ, "GANGWATCH_SOCKET": str(tmp_path / "run" / "n.sock"), "GANGWATCH_JOB": "j-1",
                "GANGWATCH_ATTEMPT": "1", "RANK": str(rank), "WORLD_SIZE": str(RANKS),
                "GANGWATCH_LAYOUT": "tensor=2,data=2,pipeline=2",
            }  # fmt: skip
            process = subprocess.Popen(
                [sys.executable, "-c", TRAINING], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True,
            )  # fmt: skip
            running.append(process)
            write_rank_file(tmp_path / "ranks", Member("j-1", 1, rank), process.pid)
        for process in running:
            assert process.stdout is not None and process.stdout.readline() == "up\n"
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate()


def test_the_shape_has_the_layout_that_reporters_send(tmp_path: Path, ranks: list[subprocess.Popen[str]]) -> None:
    collector = StepCollector(str(tmp_path / "run" / "n.sock"), Attribution(str(tmp_path / "ranks")))
    node = Node("n0", [collector], interval_seconds=0.2)
    published = Publisher(node, "127.0.0.1", 0, None, EVERYTHING, {})
    (tmp_path / "agents").mkdir()
    record = {"pid": os.getpid(), "start_time": 1, "node": "n0", "url": published.url}
    (tmp_path / "agents" / "n0.json").write_text(json.dumps(record))
    got: list[tuple[AnyLayout, Frame, int]] = []
    feed = Feed(tmp_path / "agents", lambda *reported: got.append(reported), WANTED, SystemClock())
    fleet = Fleet()
    reader = Look(fleet)

    async def until_placed() -> Shape:
        running = asyncio.ensure_future(feed.run())
        try:
            async with asyncio.timeout(60):
                while True:
                    for process in ranks:
                        assert process.stdin is not None
                        process.stdin.write("step\n")
                        process.stdin.flush()
                    await asyncio.sleep(0.1)
                    while got:
                        fleet.observe(*got.pop(0))
                    for job in reader.next(1).jobs:
                        if len(job.shape) == RANKS and job.shape.stage is not None and job.steps is not None:
                            return job.shape
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    node.start()
    published.start()
    try:
        shape = asyncio.run(until_placed())
    finally:
        published.stop()
        node.stop()
    assert shape.job == "j-1"
    assert shape.coordinate("tensor").tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    assert shape.coordinate("data").tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert shape.coordinate("stage").tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert shape.expert is None
    assert {"tensor", "data", "pipeline"} <= shape.groups.keys()
    assert [members.tolist() for members in places(shape).roles] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    # Because of rank 5, its tensor group (4, 5), its replicas (5, 7) and its pipeline (0, 1, 4, 5) look slow.
    assert intersected(np.isin(np.arange(RANKS), [0, 1, 4, 5, 7]), shape, [4, 5, 7]) == [5]


def layout_of(reported: dict[int, dict[str, str]]) -> Layout:
    columns = [
        Column(
            "gangwatch_rank_place_info", tuple(sorted({"attempt": "1", "gang": "g", "rank": str(rank), **one}.items()))
        )
        for rank, one in reported.items()
    ]
    return make_layout("n0", (Tier("steps", 1.0),), columns, ())


def shape_of(*tellings: dict[int, dict[str, str]], ranks: int = 4) -> Shape:
    """Return the job's shape after frames with these places, one frame after another."""
    fleet = Fleet()
    reader = Look(fleet)
    for seq, reported in enumerate(tellings, 1):
        layout = layout_of(reported)
        records = tuple(StepRecord(Member("g", 1, rank), seq, seq * 10**9 - 10**8, 10**8) for rank in range(ranks))
        frame = Frame(
            "n0", "boot", "a", seq, layout.layout_id, seq * 10**9, seq * 10**9, np.array([seq * 10**9]),
            np.ones(len(reported)), np.zeros(0, np.uint64), np.zeros(0, np.bool_), seq * ranks, records,
        )  # fmt: skip
        fleet.observe(layout, frame, seq * 10**9)
        telemetry = reader.next(seq * 10**9)
    [job] = telemetry.jobs
    return job.shape


def place(data: int, stage: int, tensor: int) -> dict[str, str]:
    return {"data": str(data), "stage": str(stage), "tensor": str(tensor), "expert": ""}


WHOLE = {rank: place(rank // 2, 0, rank % 2) for rank in range(4)}


def test_a_layout_is_used_only_if_every_rank_reports_its_place() -> None:
    assert shape_of(WHOLE).coordinate("data").tolist() == [0, 0, 1, 1]
    part = {rank: one for rank, one in WHOLE.items() if rank != 2}
    assert shape_of(part).data is None and shape_of(part).stage is None
    assert shape_of(part, WHOLE).coordinate("data").tolist() == [0, 0, 1, 1], "later reports count"


def test_two_ranks_at_one_place_are_no_layout() -> None:
    assert shape_of({**WHOLE, 3: place(0, 0, 0)}).data is None


def test_a_reported_layout_is_kept_while_an_agent_restarts() -> None:
    assert shape_of(WHOLE, {}).coordinate("tensor").tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("nonsense", ["-1", "one", "²", "9" * 40, " 1", ""])
def test_an_invalid_coordinate_is_unknown(nonsense: str) -> None:
    reported = {rank: {**one, "stage": nonsense} for rank, one in WHOLE.items()}
    shape = shape_of(reported)
    assert shape.stage is None
    assert shape.coordinate("data").tolist() == [0, 0, 1, 1]
