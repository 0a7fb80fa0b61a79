"""Slurm backend on a real Slurm: 16 real ranks, one of which is slowed down, and gangwatch's reaction."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.slurm.bed import Bed
from tests.slurm.site import Brake, Site, agents, gang_script, place_of

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.slow, pytest.mark.timeout(240)]

STEP_SECONDS = 0.1
WARM_UP_STEPS = 110
"""The detector learns the healthy step time from 80 steps that it saw completely."""

CHANGES_BY_ITSELF = ("CPULoad", "FreeMem", "LastBusyTime", "CPUAlloc", "AllocTRES", "RunTime", "LastSchedEval")


def submit_gang(bed: Bed, work: Path, nodes: int) -> str:
    number = bed.submit(
        gang_script(work, STEP_SECONDS, 1_000_000),
        f"--nodes={nodes}", "--ntasks-per-node=1", "--gpus-per-node=8", "--time=60",
        "--comment=gangwatch:restartable,signal=USR1,grace=4,restart=3",
    )  # fmt: skip
    bed.wait_for("its ranks", lambda: len(list(work.glob(f"{number}.*.pid"))) == nodes)
    return number


def warm_up(bed: Bed, work: Path, number: str) -> None:
    """Wait until the detector has completed the gang's warm-up, which may take long on a busy machine."""
    progress = work / f"{number}.progress"
    bed.wait_for("steps", lambda: progress.exists() and progress.read_text() != "")
    begun = int(progress.read_text())
    bed.wait_for("more steps", lambda: int(progress.read_text() or 0) > begun + WARM_UP_STEPS)


def state_of(bed: Bed, *, comments: bool = False) -> dict[str, dict[str, str]]:
    """Return Slurm's nodes and jobs without fields that change on their own. comments: include the nodes' comments."""
    lines = bed.ask("scontrol", "--oneliner", "show", "nodes").splitlines()
    lines += bed.ask("scontrol", "--oneliner", "show", "jobs").splitlines()
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        values = dict(re.findall(r"(\S+?)=(.*?)(?= \S+?=|\Z)", line))
        kept = {key: value for key, value in values.items() if key not in CHANGES_BY_ITSELF}
        if not comments and "NodeName" in kept:
            kept.pop("Comment", None)
        found[line.partition(" ")[0]] = kept
    return found


def test_a_gang_leaves_the_slow_node_at_once_and_the_node_returns_after_probation(
    bed: Bed, site: Site, work: Path
) -> None:
    bed.ask("scontrol", "update", "NodeName=gpu060", "State=DRAIN", "Reason=fan 3 is broken")
    operators = bed.node("gpu060")["Reason"]
    number = submit_gang(bed, work, 16)
    # Waiting for an hour costs it less than being slowed for days, so it has no use for the slow node.
    wide = bed.submit("sleep 300", "--nodes=62", "--gpus-per-node=8", "--time=2-00:00:00")
    with agents(site.folder, bed.names[:24]):
        site.start("act", policy={"probation_seconds": 8.0})
        warm_up(bed, work, number)
        pid, slow = place_of(work, number, 5)
        with Brake(pid):
            site.wait_for("the drain", lambda: site.audit("drain"))
            verdict = time.monotonic()
            small = bed.submit("sleep 2", "--nodes=1", "--gpus-per-node=8", "--time=1")
            site.wait_for("the gang again", lambda: _runs_without(bed, number, slow), 30)
            took = time.monotonic() - verdict
        assert took < 10, f"{took:.1f} s from the verdict's drain to the gang's next attempt"
        # The small job was backfilled ahead of the wide one, which was submitted earlier and still waits.
        site.wait_for("the small job", lambda: bed.job(small)["JobState"] in ("RUNNING", "COMPLETED"))
        assert bed.job(wide)["JobState"] == "PENDING"
        # It continued from its checkpoint, and was requeued once.
        assert int((work / f"{number}.checkpoint").read_text()) > 50
        assert bed.job(number)["Restarts"] == "1"
        assert bed.job(number)["ExcNodeList"] == slow
        assert [line["outcome"] for line in site.audit("signal", "requeue", "start")] == ["done"] * 3
        assert all("straggler" in line["evidence"][0] for line in site.audit("drain", "requeue")[:2])
        # Probation: the node is in use again, but last; the same holds after Slurm has lost its weight.
        site.wait_for("probation", lambda: "gangwatch_probation" in bed.node(slow)["ActiveFeatures"])
        assert "DRAIN" not in bed.node(slow)["State"]
        heavy = int(bed.node(slow)["Weight"])
        assert heavy > 10
        bed.ask("scontrol", "reconfigure")
        site.wait_for("its weight again", lambda: bed.node(slow)["Weight"] == str(heavy), 15)
        site.wait_for("health", lambda: bed.node(slow)["Weight"] == "10")
        site.wait_for("no comment", lambda: not bed.node(slow).get("Comment"))
        assert bed.node(slow)["ActiveFeatures"] == "h200"
        assert "DRAIN" not in bed.node(slow)["State"]
    assert bed.node("gpu060")["Reason"] == operators
    assert "DRAIN" in bed.node("gpu060")["State"]
    assert not [line for line in site.audit() if line["target"] == "gpu060"]
    assert not (site.folder / "slurm-touched.json").read_text().count(slow)
    assert f"requeue {number}: done" in site.command("slurm", "report")


def _runs_without(bed: Bed, number: str, node: str) -> bool:
    job = bed.job(number)
    if job["JobState"] != "RUNNING" or job["Restarts"] == "0":
        return False
    hosts = bed.ask("scontrol", "show", "hostnames", job["NodeList"]).split()
    assert node not in hosts
    return True


def test_advise_mode_logs_its_decisions_and_changes_nothing(bed: Bed, site: Site, work: Path) -> None:
    number = submit_gang(bed, work, 4)
    with agents(site.folder, bed.names[:6]):
        site.start("advise")
        warm_up(bed, work, number)
        before = state_of(bed)
        pid, slow = place_of(work, number, 2)
        with Brake(pid):
            site.wait_for("advice", lambda: {"drain", "requeue"} <= {line["action"] for line in site.audit()})
            site.wait_for("the comment", lambda: bed.node(slow).get("Comment", "").startswith("gangwatch: would drain"))
            measures = site.get("metrics")
        after = state_of(bed)
        assert {name: after[name] for name in after if after[name] != before[name]} == {}
        assert after.keys() == before.keys()
    assert {line["outcome"] for line in site.audit("drain", "requeue")} == {"would"}
    assert {line["action"] for line in site.audit() if line["outcome"] == "done"} == {"comment"}
    assert f'gangwatch_slurm_advice{{action="drain",target="{slow}"}} 1' in measures
    assert f'gangwatch_slurm_advice{{action="requeue",target="slurm-{number}"}} 1' in measures


def test_a_submission_for_slurm_is_refused_once_with_an_alternative(site: Site) -> None:
    site.start("act")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "gangwatch", "submit", "--state", str(site.folder), "--", "true"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert "gangwatch slurm submit" in done.stderr
    assert json.loads(site.command("jobs", "--json")) in ([], {"jobs": []})


def test_an_operator_s_resume_of_our_drain_is_final(bed: Bed, site: Site) -> None:
    site.start("act")
    site.command("node", "quarantine", "gpu010")
    site.wait_for("the drain", lambda: "DRAIN" in bed.node("gpu010")["State"])
    bed.ask("scontrol", "update", "NodeName=gpu010", "State=RESUME")
    site.wait_for("the release", lambda: site.audit("release"))
    time.sleep(3)
    assert "DRAIN" not in bed.node("gpu010")["State"]
    assert "released" in site.command("story", "node:gpu010")
    assert len(site.audit("drain")) == 1


def test_drains_in_each_partition_are_limited(bed: Bed, site: Site) -> None:
    site.start("act", slurm={"partition_share": 0.04}, policy={"quarantine_max_fraction": 1.0})
    for name in ("gpu001", "gpu002", "gpu003"):
        site.command("node", "quarantine", name)
    site.wait_for("the third withheld", lambda: [one for one in site.audit("drain") if "withheld" in one["outcome"]])
    site.wait_for("two drained", lambda: len(bed.nodes_in("drain")) == 2)
    (withheld,) = {one["outcome"] for one in site.audit("drain") if one["outcome"] != "done"}
    assert "2 nodes of partition batch" in withheld
    # The drained nodes are released, and the third is drained; a restarted controller repeats nothing.
    site.stop()
    site.start("act", slurm={"partition_share": 0.04}, policy={"quarantine_max_fraction": 1.0})
    site.command("node", "release", "gpu001")
    site.wait_for("the third", lambda: bed.nodes_in("drain") == ["gpu002", "gpu003"])
    assert [line["target"] for line in site.audit("drain") if line["outcome"] == "done"] == [
        "gpu001",
        "gpu002",
        "gpu003",
    ]
