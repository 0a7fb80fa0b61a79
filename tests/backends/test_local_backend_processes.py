"""Processes and files on which the local backend is built."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_feedback.backends.local import attempt_files, local_processes, process_trees


@given(st.binary(max_size=64).filter(lambda name: b"\0" not in name))
def test_a_name_of_any_bytes_does_not_shift_the_fields(name: bytes) -> None:
    rest = b" ".join(str(number).encode() for number in range(4, 53))
    stat = local_processes.parse_stat(b"17 (" + name + b") S " + rest + b"\n")
    assert (stat.pid, stat.state, stat.parent, stat.start_time) == (17, "S", 4, 22)


@given(st.binary(max_size=64).filter(lambda text: text.count(b")") == 0))
def test_a_malformed_stat_line_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="not a line"):
        local_processes.parse_stat(text)


def test_a_process_is_identified_by_pid_and_start_time() -> None:
    me = os.getpid()
    began = local_processes.start_time(me)
    assert began is not None
    assert local_processes.is_alive(me, began)
    assert not local_processes.is_alive(me, began + 1)
    assert not local_processes.send_signal(me, began + 1, signal.SIGKILL)
    assert local_processes.send_signal(me, began, 0)


def test_a_zombie_has_ended() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    stat = local_processes.read_stat(process.pid)
    assert stat is not None and stat.gone
    assert not local_processes.is_alive(process.pid, stat.start_time)
    process.wait()
    assert local_processes.read_stat(process.pid) is None
    assert local_processes.start_time(process.pid) is None


def test_descendants_and_environments_are_found() -> None:
    process = subprocess.Popen(
        ["sh", "-c", "sleep 300 & echo $!; wait"],
        stdout=subprocess.PIPE,
        env={**os.environ, "GANGWATCH_TEST_MARK": str(os.getpid()), "OTHER": "y"},
        text=True,
    )
    assert process.stdout is not None
    sleeper = int(process.stdout.readline())
    try:
        assert [stat.pid for stat in process_trees.descendants({process.pid})] == [sleeper]
        assert {process.pid, sleeper} <= {stat.pid for stat in process_trees.descendants({os.getpid()})}
        mark = {"GANGWATCH_TEST_MARK": str(os.getpid())}
        found = process_trees.with_environment({**mark, "OTHER": "y"})
        assert {(stat.pid, stat.start_time) for stat in found} == {
            (pid, local_processes.start_time(pid)) for pid in (process.pid, sleeper)
        }
        assert process_trees.with_environment({**mark, "OTHER": "n"}) == []
    finally:
        os.kill(sleeper, signal.SIGKILL)
        process.communicate()


MOUNTS = """\
24 1 8:1 / / rw,relatime - ext4 /dev/root rw
31 24 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw
41 31 0:38 {root} /sys/fs/cgroup/un\\040ified rw,relatime shared:9 - cgroup2 cgroup2 rw
"""


@pytest.mark.parametrize(
    ("root", "membership", "folder"),
    [
        ("/", "4:memory:/x\n0::/\n", "/sys/fs/cgroup/un ified"),
        ("/", "0::/user.slice/a.scope\n", "/sys/fs/cgroup/un ified/user.slice/a.scope"),
        ("/docker/c1", "0::/docker/c1/job\n", "/sys/fs/cgroup/un ified/job"),
        ("/docker/c1", "0::/docker/c12\n", None),
        ("/", "0::/../outside\n", None),
        ("/", "4:memory:/x\n", None),
    ],
)
def test_the_own_cgroup_is_found_through_the_mount(root: str, membership: str, folder: str | None) -> None:
    assert local_processes.parse_own_cgroup(MOUNTS.replace("{root}", root), membership) == folder


def test_without_a_v2_mount_there_is_no_cgroup() -> None:
    assert local_processes.parse_own_cgroup(MOUNTS.replace("cgroup2 cgroup2", "cgroup cgroup"), "0::/\n") is None
    assert not local_processes.create_cgroup("/proc/nothing-can-be-made-here")


def test_one_of_many_claims_wins(tmp_path: Path) -> None:
    won: list[int] = []
    barrier = threading.Barrier(8)

    def claim(number: int) -> None:
        barrier.wait()
        if attempt_files.claim(f"{tmp_path}/decision", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert (tmp_path / "decision").read_text() == str(won[0])
    assert [path.name for path in tmp_path.iterdir()] == ["decision"]


def test_a_folder_appears_complete_and_once(tmp_path: Path) -> None:
    path = f"{tmp_path}/1"
    assert attempt_files.create_folder(path, {"a.json": b"{}"}, durable=True)
    assert not attempt_files.create_folder(path, {"b.json": b"{}"})
    assert [each.name for each in tmp_path.rglob("*")] == ["1", "a.json"]
    with pytest.raises(FileNotFoundError):
        attempt_files.create_folder(f"{tmp_path}/no/2", {"a.json": b"{}"})


def test_an_absent_or_truncated_record_is_none(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    assert attempt_files.read(str(path)) is None
    for text in (b"", b'{"a": ', b"[1]", b"\xff"):
        path.write_bytes(text)
        assert attempt_files.read(str(path)) is None
    attempt_files.write(str(path), {"a": "\udcff"}, durable=True)
    assert attempt_files.read(str(path)) == {"a": "\udcff"}
    assert list(tmp_path.iterdir()) == [path]


def test_an_unreadable_decision_is_no_permission(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert attempt_files.decision(folder) is None
    (tmp_path / "decision").write_bytes(b"")
    assert attempt_files.decision(folder) == ("abort", "")
    (tmp_path / "decision").unlink()
    assert attempt_files.decide(folder, attempt_files.GO, "")
    assert not attempt_files.decide(folder, attempt_files.ABORT, "too late")
    assert attempt_files.decision(folder) == ("go", "")


def test_the_shim_imports_without_the_heavy_modules() -> None:
    folder = Path(local_processes.__file__).parent
    program = (
        f"import sys; sys.path.append({str(folder)!r}); import shim; "
        "print([name for name in ('typing', 'dataclasses', 'subprocess', 'pathlib', 'msgspec') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, capture_output=True, text=True)
    assert output.stdout == "[]\n"
