"""Reserved ports: only a server that was given the port can use it."""

from __future__ import annotations

import http.server
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import held_neighbours, held_port, held_ports

ROOT = Path(__file__).resolve().parents[1]


def test_no_two_processes_get_the_same_port() -> None:
    """Run two test clusters at the same time, as two workers or two checkouts do."""
    program = "from tests.ports import held_ports; print(*held_ports(200), flush=True); input()"
    beds = [
        subprocess.Popen(
            [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    given = []
    for bed in beds:
        assert bed.stdout is not None
        given += bed.stdout.readline().split()
    given += [str(port) for port in held_ports(200)]
    for bed in beds:
        bed.communicate("\n")
    assert len(given) == len(set(given)) == 600


@pytest.mark.parametrize("address", ["", "127.0.0.1"])
def test_a_held_port_cannot_be_bound_by_other_programs(address: str) -> None:
    port = held_port()
    with socket.socket() as probe, pytest.raises(OSError, match="in use"):
        probe.bind((address, port))


def test_a_server_can_listen_on_a_held_port_and_restart() -> None:
    port = held_port()
    for _ in range(2):
        with http.server.HTTPServer(("127.0.0.1", port), http.server.BaseHTTPRequestHandler):
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=10)


def test_neighbouring_ports_are_all_held() -> None:
    first = held_neighbours(4)
    for port in range(first, first + 4):
        with socket.socket() as probe, pytest.raises(OSError, match="in use"):
            probe.bind(("127.0.0.1", port))


def test_no_test_looks_up_a_free_port_without_tests_ports() -> None:
    """A port that was only found to be free can be bound by another program before the test uses it."""
    own = {Path(__file__), ROOT / "tests" / "ports.py"}
    files = {*ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py")} - own
    finders = [path for path in files if "def free_port" in path.read_text() or "in range(18000" in path.read_text()]
    assert finders == []
