"""README's quick start: it works as written, in its order, on machines of different sizes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs
from tests.fakes.nvml.build import build
from tests.gangwatch.front_door import FrontDoor, front_door, wait_until

pytestmark = [pytest.mark.xdist_group("front-door"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def quick_start() -> list[str]:
    """Return the shell commands under "Use it", without comments."""
    section = (ROOT / "README.md").read_text().partition("\n## Use it\n")[2]
    block = re.search(r"```sh\n(.*?)```", section, flags=re.DOTALL)
    assert block is not None
    lines = [line.partition(" #")[0].strip() for line in block[1].splitlines()]
    return [line for line in lines if line.startswith("gangwatch ")]


def machine(folder: Path, processors: int) -> dict[str, str]:
    """Return environment variables with which every process sees this number of processors."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        f"import os\nos.sched_getaffinity = lambda pid: set(range({processors}))\nos.cpu_count = lambda: {processors}\n"
    )
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def run_line(door: FrontDoor, line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the line in a checkout. Its state folder and its files in /tmp are those of the test."""
    words = shlex.split(line.replace("/tmp/", f"{folder}/"))
    done = subprocess.run(
        words, env=door.environment | {"GANGWATCH_STATE": str(door.state)}, cwd=ROOT, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{line}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}\n{door.logs()}"
    return done


def run_quick_start(door: FrontDoor, folder: Path) -> str:
    """Run all lines of the quick start. Return the output of `up`."""
    lines = quick_start()
    names = [shlex.split(line)[1] for line in lines]
    assert names == ["up", "submit", "jobs", "explain", "story", "logs", "down"]
    printed = run_line(door, f"{lines[0]} --port 0", folder).stdout  # another gangwatch may use the default port
    for name, line in zip(names[1:], lines[1:], strict=True):
        if name == "logs":  # by now a person would have seen the job run
            wait_until(lambda: bool(door.run("logs", "j-000001", "--rank", "0", code=None).stdout), door.logs)
        done = run_line(door, line, folder)
        if name == "submit":
            assert done.stdout == "j-000001\n"
            job = door.wait_for("j-000001", "running", "completed")
            assert len(job["ranks"]) == 4
            nodes = door.json("nodes")
            assert len(nodes) >= 2 and all(node["slots"] >= 2 for node in nodes), "a job can be moved"
        elif name == "jobs":
            assert "train_dp" in done.stdout
        elif name in ("explain", "story"):
            assert "j-000001" in done.stdout or "train_dp" in done.stdout
    assert door.state.controller() is None
    return printed


def test_the_quick_start_works_on_a_small_machine(tmp_path: Path) -> None:
    with front_door(tmp_path / "state") as door:
        door.environment |= machine(tmp_path / "machine", 2)
        printed = run_quick_start(door, tmp_path)
    assert printed.count("(4 slots)") == 2
    assert "8 slots share 2 processors" in printed


@pytest.mark.parametrize(("processors", "nodes", "slots"), [(8, 2, 4), (128, 8, 16)])
def test_the_first_line_gives_a_larger_machine_more_slots(
    processors: int, nodes: int, slots: int, tmp_path: Path
) -> None:
    with front_door(tmp_path / "state") as door:
        door.environment |= machine(tmp_path / "machine", processors)
        printed = run_line(door, f"{quick_start()[0]} --port 0", tmp_path).stdout
        assert [node["slots"] for node in door.json("nodes")] == [slots] * nodes
    assert printed.count(f"({slots} slots)") == nodes
    assert "share" not in printed


def test_the_quick_start_works_on_a_machine_with_eight_gpus(tmp_path: Path) -> None:
    needs.component("gcc", "gcc")
    library = build(tmp_path)
    with front_door(tmp_path / "state") as door:
        config = tmp_path / "gangwatch.toml"
        config.write_text(f"[agent]\nnvml_library = {str(library)!r}\n")
        door.environment |= machine(tmp_path / "machine", 2)
        door.environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")
        (tmp_path / "config" / "gangwatch").mkdir(parents=True)
        config.rename(tmp_path / "config" / "gangwatch" / "gangwatch.toml")
        printed = run_quick_start(door, tmp_path)
    assert "node-0 (4 GPUs), node-1 (4 GPUs)" in printed
    assert "share" not in printed
