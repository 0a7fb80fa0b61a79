"""Complete session with the commands up, submit, jobs, logs, explain, story, cancel, down. No process remains."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangwatch.state_folder import start_time_of
from tests.gangwatch.front_door import FrontDoor, front_door, wait_until

pytestmark = [pytest.mark.xdist_group("front-door"), pytest.mark.slow]

PYTHON = (sys.executable, "-c")
SAYS_RANK = "import os, sys, time; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True); "


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontDoor]:
    with front_door(tmp_path_factory.mktemp("run")) as running:
        running.up()
        yield running


def test_a_gang_from_submission_to_its_cancellation(door: FrontDoor) -> None:
    job_id = door.submit(
        "--name", "both", "--ranks", "4", "--grace", "1s", "--", *PYTHON, SAYS_RANK + "time.sleep(600)"
    )
    job = door.wait_for(job_id, "running")
    assert set(job) >= {"job", "name", "user", "queue", "size", "state", "attempt", "ranks", "verdicts", "reason"}
    assert (job["name"], job["attempt"], job["verdicts"]) == ("both", 1, [])
    assert [rank["rank"] for rank in job["ranks"]] == [0, 1, 2, 3]
    assert {(rank["node"], rank["slot"]) for rank in job["ranks"]} == {(f"node-{n}", s) for n in (0, 1) for s in (0, 1)}
    for rank in job["ranks"]:
        assert set(rank) == {"rank", "node", "slot", "pid", "start_time", "exit_code"}
        assert rank["start_time"] == start_time_of(rank["pid"])
        assert rank["exit_code"] is None

    waiting = door.submit("--ranks", "1", "true")
    assert door.job(waiting)["state"] == "pending"
    assert waiting in door.run("queue").stdout
    explained = door.json("explain", waiting)
    assert explained["state"] == "pending"
    assert job_id in json.dumps(explained)
    assert job_id in door.run("explain", waiting).stdout

    wait_until(lambda: len(door.run("logs", job_id, code=None).stdout.splitlines()) == 4, door.logs)
    assert sorted(door.run("logs", job_id).stdout.splitlines()) == [f"{rank}: rank {rank} of 4" for rank in range(4)]
    assert door.run("logs", job_id, "--rank", "2").stdout == "rank 2 of 4\n"

    door.run("cancel", job_id)
    ended = door.wait_for(job_id, "cancelled")
    assert [rank["exit_code"] for rank in ended["ranks"]] == [143] * 4
    assert all(start_time_of(rank["pid"]) != rank["start_time"] for rank in job["ranks"])
    assert job_id not in [job["job"] for job in door.json("jobs", "--active")]
    assert door.wait_for(waiting, "completed")["ranks"][0]["exit_code"] == 0

    entries = door.json("story", job_id)
    assert [entry["kind"] for entry in entries][:3] == ["submitted", "started", "running"]
    assert "cancel" in json.dumps(entries)
    assert door.run("story", job_id).stdout.count("\n") >= len(entries)
    assert "already" in door.run("cancel", job_id, code=1).stderr


def test_submit_wait_exits_with_the_jobs_exit_code(door: FrontDoor) -> None:
    done = door.run("submit", "--wait", "--ranks", "2", "--", *PYTHON, "pass")
    assert done.stdout.startswith("j-")
    assert "completed" in done.stderr
    failed = door.run("submit", "--wait", "--json", "--", *PYTHON, "raise SystemExit(3)", code=1)
    job = json.loads(failed.stdout)
    assert (job["state"], job["ranks"][0]["exit_code"]) == ("failed", 3)


def test_a_job_gets_the_environment_and_folder_of_submit_without_gangwatchs_own_variables(
    door: FrontDoor, tmp_path: Path
) -> None:
    program = (
        "import os, json; print(json.dumps([os.getcwd(), os.environ.get('MINE'), os.environ.get('GIVEN'), "
        "os.environ.get('GANGWATCH_TOKEN'), os.environ['GANGWATCH_JOB'], os.environ['PATH']]))"
    )
    door.environment |= {"MINE": "from outside", "GANGWATCH_TOKEN": "secret", "RANK": "77"}
    try:
        job_id = json.loads(
            door.run("submit", "--json", "--env", "GIVEN=a=b", "--chdir", str(tmp_path), "--", *PYTHON, program).stdout
        )["job"]
    finally:
        for name in ("MINE", "GANGWATCH_TOKEN", "RANK"):
            del door.environment[name]
    door.wait_for(job_id, "completed")
    seen = json.loads(door.run("logs", job_id, "--rank", "0").stdout)
    assert seen == [str(tmp_path), "from outside", "a=b", None, job_id, door.environment["PATH"]]


def test_logs_follow_to_the_end(door: FrontDoor) -> None:
    job_id = door.submit("--", *PYTHON, "import time; [(print(n, flush=True), time.sleep(0.3)) for n in range(4)]")
    followed = door.run("logs", job_id, "--rank", "0", "--follow")
    assert followed.stdout == "0\n1\n2\n3\n"


def test_submit_refuses_more_ranks_than_slots_and_names_the_maximum(door: FrontDoor) -> None:
    refused = door.run("submit", "--ranks", "5", "true", code=1)
    assert refused.stdout == ""
    assert "4" in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_a_job_with_a_missing_program_fails_with_the_reason(door: FrontDoor) -> None:
    failed = door.run("submit", "--wait", "no-such-program", code=1)
    assert "failed" in failed.stderr
    assert "no-such-program" in door.run("story", failed.stdout.strip()).stdout


def test_nodes_are_quarantined_and_released(door: FrontDoor) -> None:
    door.run("node", "maintenance", "node-1", "--reason", "new NIC")
    states = {node["node"]: (node["state"], node["reason"]) for node in door.json("nodes")}
    assert states["node-0"][0] == "healthy"
    assert states["node-1"][0] == "maintenance"
    assert "new NIC" in states["node-1"][1]
    assert "maintenance" in door.run("nodes").stdout
    door.run("node", "release", "node-1")
    assert {node["state"] for node in door.json("nodes")} == {"healthy"}
    assert "maintenance" in door.run("story", "node:node-1").stdout
    assert "node-0, node-1" in door.run("node", "release", "node-7", code=1).stderr


def test_a_freeze_holds_pending_jobs(door: FrontDoor) -> None:
    door.run("freeze")
    try:
        job_id = door.submit("true")
        time.sleep(1.0)
        assert door.job(job_id)["state"] == "pending"
    finally:
        door.run("thaw")
    door.wait_for(job_id, "completed")


def test_verdicts_are_listed_and_unknown_ids_are_refused(door: FrontDoor) -> None:
    assert door.json("verdict", "list") == []
    assert "no verdict" in door.run("verdict", "reject", "v-1", code=1).stderr


@pytest.mark.parametrize("command", [["explain"], ["story"], ["cancel"]])
def test_commands_refuse_a_job_that_does_not_exist(door: FrontDoor, command: list[str]) -> None:
    assert door.run(*command, "j-999999", code=1).stderr == "Error: no job j-999999\n"


def test_the_controller_serves_metrics_and_accepts_requests_only_with_the_token(door: FrontDoor) -> None:
    record = door.state.controller()
    assert record is not None
    with urllib.request.urlopen(f"{record.url}/metrics", timeout=10) as response:
        text = response.read().decode()
    assert 'gangwatch_nodes{state="healthy"} 2' in text
    with urllib.request.urlopen(f"{record.url}/readyz", timeout=10) as response:
        assert response.status == 200
    request = urllib.request.Request(f"{record.url}/api/freeze", b"{}", {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    assert refused.value.code == 401
    refused.value.close()
    assert (door.state.token_file.stat().st_mode & 0o777, door.state.path.stat().st_mode & 0o777) == (0o600, 0o700)


def test_agents_export_the_ranks_of_their_node(door: FrontDoor) -> None:
    job_id = door.submit("--ranks", "4", "--grace", "1s", "--", *PYTHON, "import time; time.sleep(600)")
    door.wait_for(job_id, "running")
    try:
        for node, ranks in (("node-0", 2), ("node-1", 2)):
            agent = door.state.agent(node)
            assert agent is not None

            def published(url: str = agent.url, ranks: int = ranks) -> bool:
                with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
                    return (
                        response.read().decode().count(f'gangwatch_rank_threads{{attempt="1",gang="{job_id}"') == ranks
                    )

            wait_until(published, door.logs)
    finally:
        door.run("cancel", job_id)
    door.wait_for(job_id, "cancelled")


def test_daemons_import_only_what_they_need(door: FrontDoor) -> None:
    """The agent shares each node with training jobs, so it must not load modules that only the controller needs."""
    agent = door.state.agent("node-0")
    assert agent is not None
    mapped = Path(f"/proc/{agent.pid}/maps").read_text()
    assert "_sqlite3" not in mapped
    assert "aiohttp" not in mapped


def test_standard_output_contains_only_the_json_document(door: FrontDoor) -> None:
    for command in (["jobs"], ["nodes"], ["queue"], ["verdict", "list"], ["config"], ["check"], ["up"]):
        done = door.run(*command, "--json")
        json.loads(done.stdout)


def test_interrupting_submit_wait_does_not_stop_the_job(door: FrontDoor) -> None:
    with door.start("submit", "--wait", "--", *PYTHON, "import time; time.sleep(3)") as waiting:
        assert waiting.stdout is not None
        job_id = waiting.stdout.readline().strip()
        os.kill(waiting.pid, signal.SIGINT)
        waiting.communicate(timeout=30)
        assert waiting.returncode == 130
    door.wait_for(job_id, "completed")
