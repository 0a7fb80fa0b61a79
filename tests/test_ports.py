"""Held ports: a server that is told of one gets it, and nobody else does."""

from __future__ import annotations

import http.server
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import held_neighbours, held_port, held_ports

ROOT = Path(__file__).resolve().parents[1]


def test_no_two_processes_are_given_the_same_port() -> None:
    """Two test beds at once, in two workers or in two checkouts."""
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
def test_a_held_port_is_refused_to_whoever_only_finds_it_free(address: str) -> None:
    port = held_port()
    with socket.socket() as probe, pytest.raises(OSError, match="in use"):
        probe.bind((address, port))


def test_a_server_listens_on_a_held_port_and_may_come_back() -> None:
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


def test_no_test_looks_for_a_free_port_by_itself() -> None:
    """A port that is found free and let go of is lost to whoever binds it next."""
    own = {Path(__file__), ROOT / "tests" / "ports.py"}
    files = {*ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py")} - own
    finders = [path for path in files if "def free_port" in path.read_text() or "in range(18000" in path.read_text()]
    assert finders == []
