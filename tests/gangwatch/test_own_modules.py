"""What lies in the folder where a command is typed, or was installed beside us, never stands in for our packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangwatch.own_modules import MARK, PACKAGES
from tests.gangwatch.front_door import FrontDoor, front_door

ROOT = Path(__file__).parents[2]

INTRUDERS = ("agent", "exporter", "numpy", "click", "msgspec", "rich", "starlette", "uvicorn", "scheduler_feedback")

PROGRAM = ("-c", "from gangwatch.__main__ import main; main()")
"""What the installed `gangwatch` script runs; by -c the current folder is on the path, which is worse."""


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """A folder with files and folders that are called as ours and as what we use."""
    folder = tmp_path / "crowded"
    folder.mkdir()
    for name in INTRUDERS:
        (folder / f"{name}.py").write_text(f"raise SystemExit('the wrong {name} was imported')\n")
    (folder / "dashboards").mkdir()
    (folder / "dashboards" / "__init__.py").write_text("raise SystemExit('the wrong dashboards was imported')\n")
    return folder


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GANGWATCH_")}
    environment |= {"HOME": str(folder), **variables}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )
    assert "the wrong" not in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("way", [("-m", "gangwatch"), PROGRAM])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--version",), 0),
        (("agent", "--help"), 0),
        (("agent", "--node", "no/name"), 1),
        (("controller", "--check-config", "--json"), 0),
        (("jobs",), 3),
        (("simulate", "--help"), 0),
        (("dashboards", "--help"), 0),
        (("kubernetes", "--help"), 0),
        (("demo", "--help"), 0),
    ],
)
def test_commands_run_in_a_folder_of_intruders(
    crowded: Path, way: tuple[str, ...], arguments: tuple[str, ...], code: int
) -> None:
    done = run(crowded, *way, *arguments)
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize("path", ["", ".", "{folder}/..{pathsep}", "../crowded"])
def test_a_relative_entry_of_pythonpath_brings_no_intruder(crowded: Path, path: str) -> None:
    given = path.format(folder=crowded, pathsep=os.pathsep)
    done = run(crowded, "-m", "gangwatch", "jobs", PYTHONPATH=given or os.pathsep)
    assert done.returncode == 3, done.stderr


def test_a_folder_that_somebody_put_on_pythonpath_brings_no_other_agent(tmp_path: Path) -> None:
    """Named on purpose, it stays on the path for everything but our own packages."""
    folder = tmp_path / "libraries"
    folder.mkdir()
    (folder / "agent.py").write_text("raise SystemExit('the wrong agent was imported')\n")
    done = run(tmp_path, "-m", "gangwatch", "jobs", PYTHONPATH=str(folder))
    assert done.returncode == 3, done.stderr


def test_what_was_loaded_before_us_is_named(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("")
    text = "import agent; from gangwatch.__main__ import main; main()"
    done = run(tmp_path, "-c", text)
    assert done.returncode == 1
    assert str(tmp_path / "agent.py") in done.stderr
    assert "pipx install --force" in done.stderr
    assert "rename it" in done.stderr


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A copy of the program as pip lays it out, in a folder that is on PYTHONPATH."""
    site = tmp_path / "site"
    for name in (*PACKAGES, "gangwatch"):
        shutil.copytree(ROOT / name, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    return site


def test_another_distribution_over_ours_is_named(installed: Path, tmp_path: Path) -> None:
    """As `pip install exporter` does it: it writes exporter/__init__.py over ours, and says so in its metadata."""
    assert run(tmp_path, "-m", "gangwatch", "--version", PYTHONPATH=str(installed)).returncode == 0
    foreign = installed / "exporter" / "__init__.py"
    foreign.write_text("raise SystemExit('the wrong exporter was imported')\n")
    about = installed / "exporter_of_others-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: exporter-of-others\nVersion: 1.0\n")
    (about / "top_level.txt").write_text("exporter\n")
    done = run(tmp_path, "-m", "gangwatch", "jobs", PYTHONPATH=str(installed))
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: {foreign} does not belong to gangwatch")
    assert "pip uninstall exporter-of-others" in done.stderr
    assert "uv tool install --force" in done.stderr


def test_a_package_that_was_uninstalled_is_named(installed: Path, tmp_path: Path) -> None:
    shutil.rmtree(installed / "exporter")
    done = run(tmp_path, "-m", "gangwatch", "jobs", PYTHONPATH=str(installed))
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: {installed / 'exporter'} is missing")


@pytest.mark.parametrize("name", PACKAGES)
def test_every_package_of_ours_has_the_mark(name: str) -> None:
    assert MARK in (ROOT / name / "__init__.py").read_bytes()


# --- every process that we start --------------------------------------------------------------------------------------


@pytest.fixture
def door(tmp_path: Path) -> Iterator[FrontDoor]:
    with front_door(tmp_path) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.xdist_group("front-door")
def test_up_and_a_job_in_a_folder_of_intruders(door: FrontDoor, crowded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor, the agents, the controller, the shim and the commands, all started from there."""
    monkeypatch.chdir(crowded)
    door.up()
    job_id = door.submit("--", sys.executable, "-I", "-c", "print('done')")
    door.wait_for(job_id, "completed")
    assert "the wrong" not in door.logs()


def test_every_process_of_ours_is_started_without_the_current_folder() -> None:
    """`-P`, or `-I` which implies it, stands in every command line that starts Python on a module of ours."""
    found = 0
    for file in sorted(path for package in (*PACKAGES, "gangwatch") for path in (ROOT / package).rglob("*.py")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if "sys.executable" in line and '"-m"' in line:
                found += 1
                assert '"-P", "-m"' in line, f"{file}:{number}"
    assert found >= 4
