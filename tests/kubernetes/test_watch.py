"""Watches and their connection: each change is reported once, and changes of one object are handled in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.api_server import api_connection as connection_module
from scheduler_feedback.backends.kubernetes.api_server import watch as watch_module
from scheduler_feedback.backends.kubernetes.api_server.api_connection import Connection
from scheduler_feedback.backends.kubernetes.api_server.client import (
    Access,
    UnreachableError,
)
from scheduler_feedback.backends.kubernetes.api_server.watch import Watch, all_synced
from scheduler_feedback.backends.kubernetes.objects.objects import Pod
from tests.kubernetes.little_api import refused

# --- watches ---------------------------------------------------------------------------------------------------------


def a_pod(name: str, version: int, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default", "resourceVersion": str(version)}, **more}


class FakeWatch:
    """Watch of pods with scripted responses.

    pages: responses to list requests, in order. streams: for each watch, its lines or the exception to raise. The watch
    ends when no response is left.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pages: list[Any], streams: list[Any], **watch: Any) -> None:
        for name in ("_PAUSE_SECONDS", "_LONGEST_PAUSE_SECONDS"):
            monkeypatch.setattr(watch_module, name, 0.0)
        self.pages, self.streams = pages, streams
        self.asked: list[dict[str, str]] = []
        self.changes: list[tuple[str, str, str]] = []
        self.watch: Watch[Pod] = Watch(self, "/api/v1/pods", Pod, self._on_change, **watch)  # type: ignore[arg-type]

    def _on_change(self, key: str, before: Pod | None, after: Pod | None) -> None:
        versions = ["-" if one is None else one.metadata.resource_version for one in (before, after)]
        self.changes.append((key.removeprefix("default/"), versions[0], versions[1]))

    async def get(self, path: str, decoder: Any, **parameters: str) -> Any:
        self.asked.append(parameters)
        if not self.pages:
            raise asyncio.CancelledError
        page = self.pages.pop(0)
        if isinstance(page, Exception):
            raise page
        return decoder.decode(json.dumps(page))

    @contextlib.asynccontextmanager
    async def lines(self, path: str, silence: float, **parameters: str) -> AsyncIterator[AsyncIterator[bytes]]:
        self.asked.append(parameters)
        if not self.streams:
            raise asyncio.CancelledError
        stream = self.streams.pop(0)
        if isinstance(stream, Exception):
            raise stream

        async def lines() -> AsyncIterator[bytes]:
            for line in stream:
                yield json.dumps(line).encode() if not isinstance(line, bytes) else line

        yield lines()

    def run(self) -> FakeWatch:
        async def run() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait_for(self.watch.run(), 10)

        asyncio.run(run())
        return self


def page(version: int, *items: dict[str, Any], more: str = "") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version), **({"continue": more} if more else {})}, "items": list(items)}


def change(kind: str, one: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": one}


def test_a_list_in_pages_and_its_changes_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWatch(
        monkeypatch,
        [page(5, a_pod("a", 1), more="next"), page(6, a_pod("b", 2))],
        [[
            change("MODIFIED", a_pod("a", 7)), change("DELETED", a_pod("b", 8)), change("ADDED", a_pod("c", 9)),
            change("DELETED", a_pod("never", 10)), change("BOOKMARK", a_pod("", 50)),
        ]],
        parameters={"fieldSelector": "f"},
    ).run()  # fmt: skip
    assert fake.changes == [("a", "-", "1"), ("b", "-", "2"), ("a", "1", "7"), ("b", "2", "-"), ("c", "-", "9")]
    assert set(fake.watch.objects) == {"default/a", "default/c"}
    assert [one.get("continue", "") for one in fake.asked[:2]] == ["", "next"]
    assert all(one["fieldSelector"] == "f" for one in fake.asked)
    first, second = fake.asked[2:]
    assert (first["watch"], first["resourceVersion"], first["allowWatchBookmarks"]) == ("1", "6", "true")
    assert second["resourceVersion"] == "50", "a bookmark has the newest version of an idle watch"
    assert (fake.watch.lists, fake.watch.events, fake.watch.synced.is_set()) == (1, 4, True)


@pytest.mark.parametrize(
    "gone",
    [
        refused(410, "Expired"),
        [{"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}],
        [b"{no sense"],
    ],
)
def test_an_expired_or_invalid_watch_lists_again_and_reports_deletions(
    monkeypatch: pytest.MonkeyPatch, gone: Any
) -> None:
    pages = [page(5, a_pod("a", 1), a_pod("b", 2), a_pod("c", 3)), page(9, a_pod("a", 1), a_pod("c", 8))]
    fake = FakeWatch(monkeypatch, pages, [gone]).run()
    assert fake.changes == [("a", "-", "1"), ("b", "-", "2"), ("c", "-", "3"), ("c", "3", "8"), ("b", "2", "-")]
    assert fake.watch.lists == 2


def test_an_interrupted_watch_continues_from_its_last_version(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWatch(
        monkeypatch, [page(5, a_pod("a", 1))], [[change("MODIFIED", a_pod("a", 7))], UnreachableError("broken"), []]
    ).run()
    assert (fake.watch.lists, fake.watch.reconnects) == (1, 1)
    assert [one.get("resourceVersion") for one in fake.asked] == [None, "5", "7", "7", "7"]


def test_a_refusal_is_logged_once_until_the_watch_works_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = refused(403, "Forbidden", "cannot list pods")
    works = [page(5, a_pod("a", 1))]
    fake = FakeWatch(monkeypatch, [refusal, refusal, refusal, *works], [[], refusal, refusal]).run()
    assert fake.watch.lists == 1
    assert caplog.text.count("cannot list pods") == 2


def test_an_optional_kind_that_is_not_served_is_empty_and_listed_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeWatch(monkeypatch, [refused(404)], [], optional=True).run()
    assert fake.watch.absent and fake.watch.synced.is_set()
    fake = FakeWatch(monkeypatch, [refused(404), page(5, a_pod("a", 1))], [], optional=True).run()
    assert not fake.watch.absent and len(fake.changes) == 1
    fake = FakeWatch(monkeypatch, [refused(404)], []).run()
    assert not fake.watch.absent and not fake.watch.synced.is_set()


def test_kinds_that_were_not_listed_in_time_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    listed, waiting = (FakeWatch(monkeypatch, [], []).watch for _ in range(2))

    async def run() -> list[str]:
        listed.synced.set()
        return await all_synced({"nodes": listed, "pods": waiting}, 0.01)

    assert asyncio.run(run()) == ["pods"]


# --- the connection --------------------------------------------------------------------------------------------------


class Listed:
    """Watch that has listed its objects."""

    def __init__(self, synced: bool = True, ends: bool = False) -> None:
        self._listed, self._ends = synced, ends
        self.synced = asyncio.Event()

    async def run(self) -> None:
        if self._listed:
            self.synced.set()
        if self._ends:
            raise RuntimeError("a bug")
        await asyncio.sleep(100)


def connected(*, once: tuple[Coroutine[Any, Any, None], ...] = (), **watch: bool) -> Connection:
    made = Connection(Access("http://nowhere"), lambda _: {"pods": Listed(**watch)}, lambda: once)  # type: ignore[dict-item]
    made.start(5.0)
    return made


def test_work_on_one_key_is_serial_and_other_work_concurrent() -> None:
    done: list[str] = []
    busy: list[bool] = []
    first_may_end = threading.Event()
    continued = threading.Event()

    async def work(name: str, waits: bool = False, fails: bool = False) -> None:
        done.append(f"{name} begins")
        busy.append(connection.busy(("a", 1)))
        while waits and not first_may_end.is_set():
            await asyncio.sleep(0.001)
        if fails:
            raise BackendError("refused")
        done.append(f"{name} ends")
        if name in ("other", "last"):
            continued.set()

    connection = connected()
    try:
        connection.go(("a", 1), work("first", waits=True, fails=True))
        connection.go(("a", 1), work("second"))
        connection.go(("b", 1), work("other"))
        assert continued.wait(5)
        assert done == ["first begins", "other begins", "other ends"]
        assert connection.busy(("a", 1))
        continued.clear()
        first_may_end.set()
        connection.go(("a", 1), work("last"))
        assert continued.wait(5)
        assert done[3:] == ["second begins", "second ends", "last begins", "last ends"]
        assert all(busy), "also if one key ends while others wait for it"
        for _ in range(500):
            if not connection.busy(("a", 1)):
                break
            threading.Event().wait(0.01)
        assert not connection.busy(("a", 1)) and not connection.busy(("c", 1))
        connection.check()
    finally:
        connection.stop()
    with pytest.raises(BackendError, match="has ended"):
        connection.go(("a", 1), work("too late"))


def test_one_time_work_runs_after_all_lists_and_a_refusal_ends_nothing() -> None:
    done = threading.Event()

    async def refused_() -> None:
        raise BackendError("refused")

    async def once() -> None:
        done.set()

    connection = connected(once=(refused_(), once()))
    assert done.wait(5)
    connection.check()
    connection.stop()


def test_an_endless_list_and_an_ended_watch_are_errors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection_module, "_SYNC_SECONDS", 0.05)
    with pytest.raises(BackendError, match=r"pods could not be listed in 0\.05 s"):
        connected(synced=False)
    assert "this is a bug" not in caplog.text
    connection: Connection | None = None
    with pytest.raises(BackendError, match="a bug"):
        connection = connected(ends=True)  # on a busy machine, the start already reports it
        for _ in range(500):
            connection.check()
            threading.Event().wait(0.01)
    if connection is not None:
        connection.stop()  # the thread reports it before it ends
    for _ in range(500):
        if "this is a bug" in caplog.text:
            return
        threading.Event().wait(0.01)
    raise AssertionError(caplog.text)
