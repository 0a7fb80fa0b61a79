"""Modules with our packages' names, in the current folder or installed, never replace our packages."""

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
"""Code of the installed `gangwatch` script; -c also puts the current folder on the path, which is the worse case."""


@pytest.fixture
def folder_with_intruders(tmp_path: Path) -> Path:
    """Make a folder with files and folders that have the names of our packages and dependencies."""
    folder = tmp_path / "folder_with_intruders"
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
def test_commands_run_in_a_folder_with_intruding_modules(
    folder_with_intruders: Path, way: tuple[str, ...], arguments: tuple[str, ...], code: int
) -> None:
    done = run(folder_with_intruders, *way, *arguments)
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize("path", ["", ".", "{folder}/..{pathsep}", "../folder_with_intruders"])
def test_a_relative_pythonpath_entry_loads_no_intruding_module(folder_with_intruders: Path, path: str) -> None:
    given = path.format(folder=folder_with_intruders, pathsep=os.pathsep)
    done = run(folder_with_intruders, "-m", "gangwatch", "jobs", PYTHONPATH=given or os.pathsep)
    assert done.returncode == 3, done.stderr


def test_an_agent_module_on_pythonpath_does_not_replace_ours(tmp_path: Path) -> None:
    """The folder stays on the path for all imports except those of our own packages."""
    folder = tmp_path / "libraries"
    folder.mkdir()
    (folder / "agent.py").write_text("raise SystemExit('the wrong agent was imported')\n")
    done = run(tmp_path, "-m", "gangwatch", "jobs", PYTHONPATH=str(folder))
    assert done.returncode == 3, done.stderr


def test_a_foreign_module_that_is_already_loaded_is_named(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("")
    text = "import agent; from gangwatch.__main__ import main; main()"
    done = run(tmp_path, "-c", text)
    assert done.returncode == 1
    assert str(tmp_path / "agent.py") in done.stderr
    assert "pipx install --force" in done.stderr
    assert "rename it" in done.stderr


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Copy the program to a folder on PYTHONPATH, as pip installs it."""
    site = tmp_path / "site"
    for name in (*PACKAGES, "gangwatch"):
        shutil.copytree(ROOT / name, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    return site


def test_a_distribution_that_overwrote_our_package_is_named(installed: Path, tmp_path: Path) -> None:
    """Simulate `pip install exporter`: it overwrites our exporter/__init__.py, and its metadata lists that file."""
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


def test_a_missing_package_of_ours_is_named(installed: Path, tmp_path: Path) -> None:
    shutil.rmtree(installed / "exporter")
    done = run(tmp_path, "-m", "gangwatch", "jobs", PYTHONPATH=str(installed))
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: {installed / 'exporter'} is missing")


@pytest.mark.parametrize("name", PACKAGES)
def test_each_of_our_packages_has_the_marker(name: str) -> None:
    assert MARK in (ROOT / name / "__init__.py").read_bytes()


# --- every process that gangwatch starts ------------------------------------------------------------------------------


@pytest.fixture
def door(tmp_path: Path) -> Iterator[FrontDoor]:
    with front_door(tmp_path) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.xdist_group("front-door")
def test_up_and_a_job_run_in_a_folder_with_intruding_modules(
    door: FrontDoor, folder_with_intruders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor, the agents, the controller, the shim and the commands all start in such a folder."""
    monkeypatch.chdir(folder_with_intruders)
    door.up()
    job_id = door.submit("--", sys.executable, "-I", "-c", "print('done')")
    door.wait_for(job_id, "completed")
    assert "the wrong" not in door.logs()


def test_every_process_starts_without_the_current_folder_on_its_path() -> None:
    """Every command line that starts Python with one of our modules has `-P`, or `-I`, which includes it."""
    found = 0
    for file in sorted(path for package in (*PACKAGES, "gangwatch") for path in (ROOT / package).rglob("*.py")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if "sys.executable" in line and '"-m"' in line:
                found += 1
                assert '"-P", "-m"' in line, f"{file}:{number}"
    assert found >= 4
