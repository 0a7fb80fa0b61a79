"""Wheel of the step reporter for training images: five files that need only the standard library."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests import needs

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = REPOSITORY / "packaging" / "gangwatch-steps"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as a user does. hatchling comes from the package index."""
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(PROJECT)],
        capture_output=True,
        text=True,
    )
    if built.returncode != 0 and "No matching distribution found for hatchling" in built.stderr:
        needs.absent("hatchling cannot be had from a package index")
    assert built.returncode == 0, built.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that contains only the unpacked wheel."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), str(wheel)],
        check=True,
    )
    return folder


def run(installed: Path, program: str, **environment: str) -> str:
    """Run a program that can import only the standard library and the wheel. Return its output."""
    program = f"import sys; sys.path.append({str(installed)!r})\n" + textwrap.dedent(program)
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        env={"PATH": os.environ["PATH"], **environment},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_wheel_contains_exactly_the_suites_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        modules = (
            "__init__",
            "steps",
            "torch",
            "reporting/__init__",
            "reporting/collective_waits",
            "reporting/flight_recorder",
            "reporting/nccl_ras",
            "reporting/time_shift",
            "reporting/rank_stacks",
            "reporting/training_steps",
        )
        assert names == {f"gangwatch/{module}.py" for module in modules}
        for name in names:
            assert archive.read(name) == (REPOSITORY / name).read_bytes()
        assert any(name.endswith("LICENSE") for name in archive.namelist())
        metadata = next(name for name in archive.namelist() if name.endswith("METADATA"))
        assert "Requires-Dist" not in archive.read(metadata).decode()


def test_the_wheel_imports_only_the_standard_library(installed: Path) -> None:
    program = """
        from gangwatch import steps
        foreign = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names) - {"__main__"}
        print(sorted(foreign))
    """
    assert run(installed, program) == "['gangwatch']\n"


def test_the_wheel_reports_steps_without_the_suite(installed: Path, tmp_path: Path) -> None:
    program = """
        from gangwatch import steps
        reporter = steps.reporter()
        with reporter.step(tokens=3), reporter.wait():
            pass
        print(reporter.dropped, steps.__file__)
    """
    for environment in ({}, {"GANGWATCH_SOCKET": str(tmp_path / "absent.sock"), "RANK": "1"}):
        dropped, file = run(installed, program, **environment).split()
        assert (dropped, Path(file).parent.parent) == ("0", installed)


def test_the_wheel_has_the_suites_version() -> None:
    ours, suite = (
        tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (PROJECT, REPOSITORY)
    )
    assert (ours["version"], ours["license"]) == (suite["version"], suite["license"])
