"""`gangwatch top`: output at any terminal size, and behaviour in a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from gangwatch.display.top_screen import screen
from scheduler_feedback.controller import cycle_thread as loop_module
from tests.cluster.memory_backend import World
from tests.controller.site import Site, serving
from tests.web.findings import straggler

LEAVES_THE_SCREEN = b"\x1b[?1049l"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Run a controller, which the command line can find, with jobs in all states."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_module, "POLL_SECONDS", 0.02)
        patch.setattr(loop_module, "TICK_SECONDS", 0.1)
        with serving(tmp_path_factory.mktemp("top") / "state", World()) as running:
            running.controller.announce(f"http://127.0.0.1:{running.port}")
            first = running.submit(name="train", time_limit_seconds=600)
            running.wait(first, "running")
            running.submit(name="head", ranks=4, time_limit_seconds=600)
            ahead = running.submit(name="short", time_limit_seconds=60)
            running.wait(ahead, "running")
            running.controller.cycle.report([straggler(first)])
            deadline = time.monotonic() + 20
            while not running.get("/api/overview")["verdicts"]:
                assert time.monotonic() < deadline
            yield running


@pytest.fixture(scope="module")
def drawn(shared: Site) -> dict[str, Any]:
    """Return the overview document as it is before the tests change the controller's state."""
    document = shared.get("/api/overview")
    assert isinstance(document, dict)
    return document


@pytest.fixture
def site(shared: Site, drawn: dict[str, Any]) -> Site:
    return shared


@pytest.fixture
def document(drawn: dict[str, Any]) -> dict[str, Any]:
    return deepcopy(drawn)


def _drawn(document: dict[str, Any], width: int, height: int | None, trouble: str = "") -> list[str]:
    written = StringIO()
    Console(file=written, width=width, highlight=False, markup=False, color_system=None).print(
        screen(document, width, height, trouble)
    )
    return written.getvalue().splitlines()


def test_top_shows_the_same_facts_as_the_page(document: dict[str, Any]) -> None:
    text = "\n".join(_drawn(document, 140, None))
    for words in (
        "slots 4/4",
        "running 2",
        "pending 1",
        "rank 0 of j-000001 on n0 is a straggler (suspended): it slows the job down by 63 %, confidence 0.97, for",
        "+ 4 slots reserved for j-000002 from",
        "j-000003 backfilled",
        "first in the queue",
        "suspect",
    ):
        assert words in text
    line = next(line for line in text.splitlines() if line.lstrip().startswith("n1 "))
    assert "▒" in line
    assert "+" in line


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("height", [1, 5, 12, 24, 60])
def test_top_never_writes_beyond_the_terminal(document: dict[str, Any], width: int, height: int) -> None:
    lines = _drawn(document, width, height, "the controller does not answer")
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 4)
    assert lines[0].startswith("gangwatch")


def test_a_narrow_screen_cuts_words_and_never_the_name_of_a_job(document: dict[str, Any]) -> None:
    running = document["running"][0]
    verdicts = [{"short": "rank 63 on node-00029: straggler (suspended), 100 % sure"}]
    document["running"] = [
        dict(running, job="slurm-1234567", name="pretraining-of-the-largest-model", verdicts=verdicts)
    ]
    text = "\n".join(_drawn(document, 80, None))
    assert re.search(r"^slurm-1234567 +p\S+… +running ", text, re.MULTILINE), text


def test_rows_that_do_not_fit_are_counted(document: dict[str, Any]) -> None:
    document["waiting"] = [dict(document["waiting"][0], job=f"j-{n:06d}") for n in range(20)]
    document["waiting_total"] = 4000
    text = "\n".join(_drawn(document, 120, 30))
    shown = len(re.findall(r"^j-0000\d\d  +head", text, re.MULTILINE))
    assert shown >= 1
    assert f"{4000 - shown} more" in text
    assert len(text.splitlines()) <= 30


def test_job_names_cannot_move_the_cursor(document: dict[str, Any]) -> None:
    document["running"][0]["name"] = "\x1b[2J\x9b[bold]evil"
    text = "\n".join(_drawn(document, 120, None))
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert "[bold]evil" in text


# --- the command ------------------------------------------------------------------------------------------------------


def _environment(site: Site) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GANGWATCH_", "XDG_"))}
    return kept | {"HOME": str(site.controller.folder.parent), "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}


def _command(site: Site, *options: str) -> list[str]:
    return [sys.executable, "-m", "gangwatch", "top", "--state", str(site.controller.folder), *options]


def test_once_and_json_exit_after_one_document(site: Site) -> None:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            _command(site, *options), env=_environment(site), capture_output=True, text=True, timeout=60
        )

    assert "j-000001" in run("--once").stdout
    document = json.loads(run("--json").stdout)
    assert document["waiting"][0]["name"] == "head"
    neither = run()
    assert (neither.returncode, neither.stdout) == (2, "")
    assert "--once or --json" in neither.stderr
    absent = subprocess.run(
        [*_command(site, "--once")[:-3], "--state", "/nonexistent/state", "--once"],
        env=_environment(site), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert absent.returncode == 3


class Terminal:
    """Terminal in which `gangwatch top` runs."""

    def __init__(self, site: Site, columns: int = 110, lines: int = 40) -> None:
        self.seen = b""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execve(sys.executable, _command(site, "--interval", "0.3"), _environment(site))
        self.resize(columns, lines)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def shows(self, text: str) -> None:
        """Wait until the command draws the text. Text before the last call does not count."""
        deadline = time.monotonic() + 60
        while text.encode() not in self.seen:
            assert time.monotonic() < deadline, self.seen[-2000:].decode(errors="replace")
            self._read(0.2)
        self.seen = b""

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._fd], [], [], seconds)
        try:
            self.seen += os.read(self._fd, 65536) if ready else b""
        except OSError:  # EIO: the other end is closed
            return False
        return True

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def ends(self) -> int:
        """Wait until the command ends. Return its exit code."""
        deadline = time.monotonic() + 60
        while True:
            self._read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self._read(0.05) and select.select([self._fd], [], [], 0.05)[0]:
                    pass
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)


@contextmanager
def terminal(site: Site) -> Iterator[Terminal]:
    opened = Terminal(site)
    try:
        yield opened
    finally:
        opened.close()


def test_top_runs_in_a_terminal_until_q(site: Site) -> None:
    with terminal(site) as shown:
        shown.shows("rank 0 of j-000001 on n0 is a straggler (suspended)")
        shown.resize(120, 40)
        later = site.submit(name="later")
        shown.shows(later)
        shown.shows("RUN TIME")
        shown.resize(70, 20)
        shown.shows("Pending")
        shown.type(b"x")
        shown.shows("slots 4/4")
        shown.type(b"q")
        assert shown.ends() == 0
        assert LEAVES_THE_SCREEN in shown.seen


def test_top_waits_for_a_controller_that_went_away(site: Site) -> None:
    with terminal(site) as shown:
        shown.shows("slots 4/4")
        (site.controller.folder / "controller.json").unlink()
        shown.shows("no controller is running")
        site.controller.announce(f"http://127.0.0.1:{site.port}")
        shown.shows("slots 4/4")
        shown.type(b"\x03")
        assert shown.ends() == 0
        assert LEAVES_THE_SCREEN in shown.seen
