"""`make test`: which tests run again, the budget, and the exit code. Real pytest runs on small projects."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import needs
from tests.cpu_groups import groups
from tests.outcomes import id_of

ROOT = Path(__file__).resolve().parents[1]

UNSTEADY = """
import pathlib
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_unsteady(number):
    seen = pathlib.Path("seen-%d" % number)
    first = not seen.exists()
    seen.touch()
    assert not first, "only the first time"
"""

SERIAL = """
import pytest

@pytest.mark.serial
def test_alone():
    pass
"""


RECORDING_TESTS = """
import os
import pathlib
import time
import pytest

{mark}
@pytest.mark.parametrize("number", range({count}))
def test_record(number):
    with pathlib.Path("record").open("a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + " {name}\\n")
    time.sleep(0.2)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    serial: alone\naddopts = --import-mode=importlib\n")
    (tmp_path / "test_serial.py").write_text(SERIAL)
    (tmp_path / "test_fine.py").write_text("def test_fine():\n    pass\n")
    return tmp_path


def start(project: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist"}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.run", *arguments],
        cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def run(project: Path, *arguments: str, workers: int = 0) -> tuple[int, str]:
    process = start(project, "--workers", str(workers), *arguments)
    output = process.communicate(timeout=100)[0]
    return process.returncode, output


def closing(output: str) -> dict[str, int]:
    """Return the counts in the last line of the output."""
    return {
        word: int(count) for count, word in re.findall(r"(\d+) (\w+)", output.splitlines()[-1].partition(" in ")[0])
    }


def test_a_passing_run_exits_with_0_and_the_last_line_has_the_counts(project: Path) -> None:
    code, output = run(project)
    assert code == 0, output
    assert closing(output) == {"passed": 2, "failed": 0, "skipped": 0}


def test_a_test_that_fails_twice_fails_the_run(project: Path) -> None:
    (project / "test_wrong.py").write_text("def test_wrong():\n    assert 1 == 2\n")
    code, output = run(project)
    assert code == 1
    assert closing(output) == {"passed": 2, "failed": 1, "skipped": 0}
    assert "test_wrong.py::test_wrong  assert 1 == 2" in output


@pytest.mark.parametrize(("count", "code"), [(3, 0), (4, 1)])
def test_up_to_three_unsteady_tests_are_allowed_and_recorded(project: Path, count: int, code: int) -> None:
    (project / "test_unsteady.py").write_text(UNSTEADY.format(count=count))
    got, output = run(project)
    assert got == code, output
    assert closing(output) == {"passed": 2 + count, "failed": 0, "skipped": 0, "unsteady": count}
    written = (project / ".cache" / "unsteady-tests.txt").read_text().splitlines()
    assert ".cache/unsteady-tests.txt" in output
    assert [line.partition("\t")[0] for line in written] == [
        f"test_unsteady.py::test_unsteady[{number}]" for number in range(count)
    ]
    assert all("only the first time" in line for line in written)
    # No test was unsteady in the next run, and its file is empty.
    assert run(project)[0] == 0
    assert (project / ".cache" / "unsteady-tests.txt").read_text() == ""


def test_the_serial_part_does_not_collect_other_files(project: Path) -> None:
    line = "import pathlib\n\nwith pathlib.Path('imports').open('a') as file:\n    file.write(__name__ + '\\n')\n"
    for name in ("test_fine.py", "test_serial.py"):
        (project / name).write_text(line + (project / name).read_text())
    code, output = run(project)
    assert code == 0, output
    assert sorted((project / "imports").read_text().split()) == ["test_fine", "test_serial", "test_serial"]


def test_both_parts_share_one_budget(project: Path) -> None:
    (project / "test_unsteady.py").write_text(UNSTEADY.format(count=2))
    alone = UNSTEADY.format(count=2).replace("seen-", "alone-")
    (project / "test_unsteady_alone.py").write_text(f"{alone}\npytestmark = pytest.mark.serial\n")
    code, output = run(project)
    assert code == 1, output
    assert closing(output)["unsteady"] == 4


def test_tests_with_a_group_run_again_by_their_plain_ids(project: Path) -> None:
    """pytest-xdist appends the group to a test's id, which the second run would not find."""
    grouped = UNSTEADY.format(count=1).replace("@pytest", "@pytest.mark.xdist_group('bed')\n@pytest", 1)
    (project / "test_unsteady.py").write_text(grouped)
    code, output = run(project, workers=1)
    assert code == 0, output
    assert closing(output)["unsteady"] == 1
    assert id_of("a.py::test_a@bed") == "a.py::test_a"
    assert id_of("a.py::test_a[x@y]@bed") == id_of("a.py::test_a[x@y]") == "a.py::test_a[x@y]"


def test_one_worker_runs_a_whole_group_and_the_longest_groups_start_first(project: Path) -> None:
    """This also holds where pytest-xdist's own option has no effect and gives no warning."""
    mark = "@pytest.mark.xdist_group('slurm')"
    (project / "test_any.py").write_text(RECORDING_TESTS.format(name="any", mark="", count=12))
    for name in ("y_of_slurm", "z_of_slurm"):
        (project / f"test_{name}.py").write_text(RECORDING_TESTS.format(name=name, mark=mark, count=3))
    code, output = run(project, workers=2)
    assert code == 0, output
    lines = [line.split() for line in (project / "record").read_text().splitlines()]
    workers = {name: {worker for worker, other in lines if other == name} for _, name in lines}
    assert len(workers["y_of_slurm"] | workers["z_of_slurm"]) == 1
    assert len(workers["any"]) == 2
    assert "y_of_slurm" in [name for _, name in lines[:2]]


def test_pytests_cache_of_an_earlier_run_is_ignored(project: Path) -> None:
    cache = project / ".pytest_cache" / "v" / "cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text(json.dumps({"test_fine.py::test_fine": True}))
    (project / "test_unsteady.py").write_text(UNSTEADY.format(count=1))
    code, output = run(project)
    assert code == 0, output
    assert closing(output) == {"passed": 3, "failed": 0, "skipped": 0, "unsteady": 1}


def test_any_exit_code_other_than_one_fails_the_run(project: Path) -> None:
    """After a file that cannot be collected (2) or an unknown option (4) no test runs again."""
    code, output = run(project, "--no-such-option")
    assert code == 1 and "exit code 4" in output
    (project / "test_broken.py").write_text("import nothing_of_that_name\n")
    code, output = run(project)
    assert code == 1 and "exit code 2" in output
    assert "run again, alone" not in output


def test_a_process_that_exits_with_0_too_early_fails_the_run(project: Path) -> None:
    """A test or a library may call `os._exit(0)`."""
    (project / "test_serial.py").write_text(
        "import os\nimport pytest\n\n@pytest.mark.serial\ndef test_alone():\n    os._exit(0)\n"
    )
    code, output = run(project)
    assert code == 1
    assert "ended with exit code 0 before it was done" in output


def test_a_part_without_tests_fails_unless_tests_were_selected(project: Path) -> None:
    (project / "test_serial.py").unlink()
    code, output = run(project)
    assert code == 1 and "exit code 5" in output
    code, output = run(project, "test_fine.py")
    assert code == 0 and closing(output)["passed"] == 1
    code, output = run(project, "-k", "nothing_of_that_name")
    assert code == 1 and "no test ran" in output


@pytest.mark.parametrize("when", ["first", "again"])
def test_a_kill_in_either_run_fails(project: Path, when: str) -> None:
    """The run also fails if pytest's cache lists a single failed test of an earlier run."""
    cache = project / ".pytest_cache" / "v" / "cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text(json.dumps({"test_fine.py::test_fine": True}))
    (project / "test_hangs.py").write_text(
        "import os, pathlib, time\n\ndef test_hangs():\n"
        f"    if {when!r} == 'again' and not pathlib.Path('seen').exists():\n"
        "        pathlib.Path('seen').touch()\n        assert False\n"
        "    pathlib.Path('pid').write_text(str(os.getpid()))\n    time.sleep(300)\n"
    )
    process = start(project, "--workers", "0")
    deadline = time.monotonic() + 60
    while not (project / "pid").exists() or not (project / "pid").read_text():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    os.kill(int((project / "pid").read_text()), signal.SIGKILL)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 1, output
    assert "ended by signal 9" in output
    assert closing(output)["errors"] == 1


def test_skips_are_listed_with_their_reason(project: Path) -> None:
    (project / "test_skips.py").write_text(
        "import pytest\n\n@pytest.mark.parametrize('number', range(3))\n"
        "def test_skips(number):\n    pytest.skip('thing is absent: apt-get install thing')\n"
    )
    code, output = run(project)
    assert code == 0, output
    assert "     3  thing is absent: apt-get install thing" in output
    assert closing(output)["skipped"] == 3


def test_the_cpu_time_of_the_slowest_files_is_listed(project: Path) -> None:
    (project / "test_busy.py").write_text(
        "import subprocess, sys, time\n\nBUSY = 'import time\\nwhile time.process_time() < 0.5: pass'\n\n"
        "def test_computes_in_a_child():\n    subprocess.run([sys.executable, '-c', BUSY], check=True)\n"
    )
    (project / "test_waits.py").write_text("import time\n\ndef test_waits():\n    time.sleep(0.5)\n")
    _, output = run(project)
    rows = (line.split() for line in output.splitlines())
    listed = {row[2]: (float(row[0]), float(row[1])) for row in rows if len(row) == 3 and row[2].endswith(".py")}
    assert listed["test_busy.py"][1] >= 0.5, output
    assert listed["test_waits.py"][0] >= 0.5 and listed["test_waits.py"][1] < 0.3, output


def test_the_cpu_time_of_a_daemon_counts_for_the_file_that_started_it(project: Path) -> None:
    with groups() as folder:
        if folder is None:
            needs.absent("cgroup v1 with cpuacct, and root")
    (project / "test_daemon.py").write_text(
        "import subprocess, sys, time\n\nBUSY = 'import time\\nwhile time.process_time() < 0.5: pass'\n\n"
        "def test_starts_a_daemon():\n"
        "    subprocess.run(['sh', '-c', f'{sys.executable} -c \"{BUSY}\" & echo'], stdout=subprocess.DEVNULL)\n"
        "    time.sleep(1)\n"
    )
    _, output = run(project)
    assert float(next(line.split()[1] for line in output.splitlines() if line.endswith(" test_daemon.py"))) >= 0.3


def test_make_test_runs_this_program() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\ntest: ")[2].partition("\n\n")[0]
    assert recipe.splitlines()[1:] == ["\t$(BIN)/python -m tests.run"]
