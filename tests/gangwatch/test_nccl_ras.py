"""Query of NCCL's RAS: a server that speaks its protocol, with answers in the documented JSON format."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gangwatch.reporting import nccl_ras

Ask = Callable[[bytes], bytes]


class Ras:
    """Server of one connection at a time. Its answers to the commands are those of rasClientEventLoop in NCCL."""

    def __init__(self, answer: bytes, json_is_known: bool = True, pause_seconds: float = 0.0) -> None:
        self.commands: list[str] = []
        self.answer, self.json_is_known, self.pause_seconds = answer, json_is_known, pause_seconds
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as lines:
                try:
                    self.converse(lines)
                except OSError:
                    pass  # the client closed the connection

    def converse(self, lines: Any) -> None:
        for line in lines:
            command = line.decode().strip()
            self.commands.append(command)
            if command == "STATUS":
                time.sleep(self.pause_seconds)
                lines.write(self.answer)
                return  # NCCL closes the connection after the answer
            known = command.startswith("TIMEOUT ") or (command == "SET FORMAT json" and self.json_is_known)
            reply = b"SERVER PROTOCOL 2\n" if command.startswith("CLIENT PROTOCOL ") else b"OK\n"
            lines.write(reply if known or b"SERVER" in reply else b"ERROR: Unknown command\n")
            lines.flush()

    def close(self) -> None:
        self.listener.close()


def rank(number: int, pid: int = 1, **counts: int) -> dict[str, Any]:
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    return {**_where(number, pid), "status": status, "collective_counts": {"Broadcast": 0, **counts}}


def missing(number: int, dead: bool = False) -> dict[str, Any]:
    return {**_where(number, 1), "status": {"unresponsive": True, "considered_dead": dead}}


def _where(number: int, pid: int) -> dict[str, Any]:
    return {"rank": number, "host": "10.0.0.1", "pid": pid, "cuda_dev": number, "nvml_dev": number}


def communicator(ranks: list[dict[str, Any]], absent: list[dict[str, Any]], name: str = "0x1f") -> dict[str, Any]:
    counts = {"size": len(ranks) + len(absent), "ranks_count": len(ranks), "missing_ranks_count": len(absent)}
    return {"hash": name, "secondary_hash": "0x1:0x2", **counts, "ranks": ranks, "missing_ranks": absent}


def answer(*communicators: dict[str, Any]) -> dict[str, Any]:
    head = {"nccl_version": "2.29.1", "cuda_runtime_version": 13000, "cuda_driver_version": 13000}
    head |= {"timestamp": "2026-01-01 00:00:00", "communicators_count": len(communicators)}
    return {**head, "communicators": list(communicators), "ras": {"collection_time_sec": 0.0, "timeouts_count": 0}}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, str]]]:
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    servers: list[Ras] = []

    def make(*communicators: dict[str, Any], content: bytes = b"", **options: Any) -> dict[str, str]:
        servers.append(Ras(content or json.dumps(answer(*communicators)).encode(), **options))
        return {"RANK": "0", "WORLD_SIZE": "4", "NCCL_RAS_ADDR": servers[-1].address}

    make.servers = servers  # type: ignore[attr-defined]
    yield make
    for server in servers:
        server.close()


def test_a_rank_that_does_not_respond_is_named_with_its_communicator(environment: Any) -> None:
    own = [rank(0, os.getpid(), AllReduce=7), rank(1, AllReduce=7), rank(2, AllReduce=7)]
    asked = environment(communicator(own, [missing(3)], "0xae94"), communicator([rank(0)], [missing(1, True)], "0x2"))
    assert nccl_ras.ask(asked)() == (
        "communicator 0xae94 of 4 ranks: rank 3 not responding; communicator 0x2 of 2 ranks: rank 1 counted as dead"
    )
    commands = ["CLIENT PROTOCOL 2", "TIMEOUT 1", "SET FORMAT json", "STATUS"]
    assert environment.servers[0].commands == commands


def test_ranks_that_issued_fewer_collectives_are_named(environment: Any) -> None:
    counts = [7, 6, 7, 5]
    own = [rank(number, os.getpid(), AllReduce=count) for number, count in enumerate(counts)]
    asked = environment(communicator([rank(0)], []), communicator(own, []))
    words = "communicator 0x1f of 4 ranks: ranks 1,3 issued AllReduce 5 times, others 7 times"
    assert nccl_ras.troubles(asked) == words


def test_another_jobs_answer_is_ignored(environment: Any) -> None:
    """The jobs of a node may share the port: the first one has it."""
    assert nccl_ras.troubles(environment(communicator([rank(0, os.getpid() + 1)], [missing(1)]))) == ""


def test_the_text_is_short_for_many_communicators_and_ranks(environment: Any) -> None:
    own = [rank(number, os.getpid(), AllReduce=number // 2000) for number in range(4000)]
    words = nccl_ras.troubles(environment(*[communicator(own, []) for _ in range(5)]))
    assert words.startswith(
        "communicator 0x1f of 4000 ranks: ranks 0,1,2,3,4,5,6,7 and 1992 others issued AllReduce 0 "
    )
    assert words.endswith("2 more") and len(words) <= nccl_ras.MAX_CHARACTERS


@pytest.mark.parametrize(
    "content",
    [b"not JSON", b"[]", b'{"communicators": 3}', b'{"communicators": [{}]}', b"[" * 100_000],
    ids=["text", "list", "number", "empty", "deep"],
)
def test_an_unknown_answer_is_ignored(content: bytes, environment: Any) -> None:
    assert nccl_ras.troubles(environment(content=content)) == ""


def test_a_version_without_json_is_ignored(environment: Any) -> None:
    asked = environment(communicator([rank(0, os.getpid())], [missing(1)]), json_is_known=False)
    assert nccl_ras.troubles(asked) == ""
    assert "STATUS" not in environment.servers[0].commands


def test_a_slow_or_long_answer_does_not_delay_the_report(environment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_ras, "QUERY_SECONDS", 0.2)
    own = communicator([rank(0, os.getpid())], [missing(1)])
    begun = time.monotonic()
    assert nccl_ras.ask(environment(own, pause_seconds=2.0))() == ""
    assert time.monotonic() - begun < 1.5
    monkeypatch.setattr(nccl_ras, "MAX_ANSWER_BYTES", 100)
    assert nccl_ras.troubles(environment(own)) == ""


def test_only_the_first_and_last_rank_query(environment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = environment()
    assert [rank for rank in range(4) if nccl_ras.asks({**asked, "RANK": str(rank)})] == [0, 3]
    assert not nccl_ras.asks({**asked, "NCCL_RAS_ENABLE": "0"})
    assert not nccl_ras.asks({"NCCL_RAS_ADDR": asked["NCCL_RAS_ADDR"]})
    monkeypatch.delitem(sys.modules, "torch")
    assert not nccl_ras.asks(asked)


def test_the_address_is_that_of_the_environment() -> None:
    assert nccl_ras.address({}) == ("localhost", 28028)
    assert nccl_ras.address({"NCCL_RAS_ADDR": "[::1]:9"}) == ("::1", 9)
    assert nccl_ras.troubles({"NCCL_RAS_ADDR": "host"}) == "", "an invalid address"
    assert nccl_ras.troubles({"NCCL_RAS_ADDR": "127.0.0.1:1"}) == "", "no server"
