"""Feed: reads every agent's stream of frames and hands them on, in the order in which they came.

Agents announce themselves by a file in the state folder (``agents/NODE.json``), which is looked at each second: one
that started again has a new address. A stream that ends, falls silent or says what is no frame of ours is opened again
after a pause that doubles and is jittered, so that a rack that comes back doesn't come back in one instant.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import msgspec

from agent.schema.clock import Clock
from agent.schema.errors import FrameError, VersionError
from agent.schema.frame import Frame, Layout, MessageSplitter, check_fits, decode
from scheduler_feedback.core.fleet import Sample
from scheduler_feedback.credentials import Credentials

DISCOVERY_SECONDS = 1.0
BACKOFF_LEAST_SECONDS = 0.1
BACKOFF_MOST_SECONDS = 5.0
"""A restarted agent is heard again well before its absence (10 s of silence) could pass for a lost node."""

CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 10.0
"""Ten frames at the usual second: a stream that is silent for so long is dead, whatever TCP believes."""

READ_BUFFER_BYTES = 16 * 1024
"""Of each stream. aiohttp's default of 64 KiB costs gigabytes at 10,000 streams; a frame is about 4 kB."""

Deliver = Callable[[Layout, Frame, int], None]
"""Takes a frame with its layout and the monotonic time of its receipt. Called on the event loop: must not block."""

_log = logging.getLogger(__name__)


class AgentRecord(msgspec.Struct, frozen=True):
    """What an agent's file says of it; pid and start time single out the process."""

    pid: int
    start_time: int
    node: str
    url: str


@dataclass(slots=True)
class Stream:
    """What is known of one node's stream. received_ns: monotonic, of the newest frame; None before the first."""

    node: str
    connected: bool = False
    frames: int = 0
    malformed: int = 0
    received_ns: int | None = None
    complaint: str = field(default="", repr=False)


class Feed:
    """Reads the frames of every agent that announces itself in `folder`.

    wanted: metric names (or prefixes ending in ``*``) that are asked of the agents; none asks for all. credentials: for
    agents that are reached over TLS.
    """

    def __init__(
        self,
        folder: Path,
        deliver: Deliver,
        wanted: Sequence[str],
        clock: Clock,
        credentials: Credentials | None = None,
    ) -> None:
        """Raises ConfigError for credentials that can't be used."""
        self._credentials = credentials or Credentials()
        self._context = self._credentials.context() if credentials is not None else None
        self._folder = folder
        self._deliver = deliver
        self._wanted = tuple(wanted)
        self._clock = clock
        self._files: dict[str, tuple[int, int, int]] = {}
        self._agents: dict[str, AgentRecord] = {}
        self._tasks: dict[str, tuple[AgentRecord, asyncio.Task[None]]] = {}
        self.streams: dict[str, Stream] = {}

    async def run(self) -> None:
        """Read until cancelled."""
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS),
            connector=aiohttp.TCPConnector(limit=0, ssl=self._context or True),
            read_bufsize=READ_BUFFER_BYTES,
        ) as session:
            try:
                while True:
                    self._discover()
                    self._keep_reading(session)
                    await asyncio.sleep(DISCOVERY_SECONDS)
            finally:
                tasks = [task for _, task in self._tasks.values()]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self._tasks.clear()

    def measures(self) -> Iterator[Sample]:
        """The feed's own series."""
        now_ns = self._clock.monotonic_ns()
        for stream in list(self.streams.values()):
            labels = (("node", stream.node),)
            yield "gangwatch_feed_connected", labels, float(stream.connected)
            yield "gangwatch_feed_frames_total", labels, float(stream.frames)
            yield "gangwatch_feed_malformed_total", labels, float(stream.malformed)
            if stream.received_ns is not None:
                yield "gangwatch_feed_frame_age_seconds", labels, (now_ns - stream.received_ns) / 1e9

    # --- agents ------------------------------------------------------------------------------------------------------

    def _discover(self) -> None:
        """Read the agents' files that are new or changed; forget the agents whose file is gone."""
        found: dict[str, tuple[int, int, int]] = {}
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if entry.name.endswith(".json") and not entry.name.startswith("."):
                        status = entry.stat()
                        found[entry.name] = (status.st_mtime_ns, status.st_ino, status.st_size)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                _log.warning("%s: %s", self._folder, error.strerror)
            return
        for name in self._files.keys() - found.keys():
            self._agents.pop(name, None)
        for name, identity in found.items():
            if self._files.get(name) != identity:
                self._agents.pop(name, None)
                try:
                    self._agents[name] = self._read_record(name)
                except (OSError, ValueError) as error:
                    _log.warning("%s: no agent's record: %s", self._folder / name, error)
        self._files = found

    def _read_record(self, name: str) -> AgentRecord:
        """Raises ValueError for what is no agent's record."""
        try:
            record = msgspec.json.decode((self._folder / name).read_bytes(), type=AgentRecord)
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from None
        if f"{record.node}.json" != name:
            raise ValueError(f"it names node {record.node!r}")
        address = urlsplit(record.url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ValueError(f"url {record.url!r} is no http address")
        return record

    def _keep_reading(self, session: aiohttp.ClientSession) -> None:
        """One task an agent: end those of agents that are gone or new, begin what is missing."""
        wanted = {record.node: record for record in self._agents.values()}
        for node, (record, task) in list(self._tasks.items()):
            if task.done():
                task.result()  # a reader ends by itself only through a bug of ours, which is raised here
            if wanted.get(node) != record:
                task.cancel()
                del self._tasks[node]
        for node, record in wanted.items():
            if node not in self._tasks:
                stream = self.streams.setdefault(node, Stream(node))
                self._tasks[node] = (
                    record,
                    asyncio.create_task(self._follow(session, record, stream), name=f"feed {node}"),
                )

    # --- one agent ---------------------------------------------------------------------------------------------------

    async def _follow(self, session: aiohttp.ClientSession, agent: AgentRecord, stream: Stream) -> None:
        """Read the agent's stream again and again."""
        backoff_seconds = BACKOFF_LEAST_SECONDS
        while True:
            before = stream.frames
            try:
                complaint = await self._read(session, agent, stream)
            except VersionError as error:
                stream.malformed += 1
                complaint = str(error)
                before, backoff_seconds = stream.frames, BACKOFF_MOST_SECONDS  # only an upgrade mends this
            except FrameError as error:
                stream.malformed += 1
                complaint = f"not a stream of frames: {error}"
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                complaint = str(error) or type(error).__name__
            finally:
                stream.connected = False
            # The same complaint again and again is one line: the counters tell the rest.
            if complaint != stream.complaint:
                _log.warning("stream of %s (%s): %s", agent.node, agent.url, complaint)
                stream.complaint = complaint
            if stream.frames > before:
                backoff_seconds = BACKOFF_LEAST_SECONDS
            await asyncio.sleep(backoff_seconds * random.uniform(0.5, 1.0))
            backoff_seconds = min(BACKOFF_MOST_SECONDS, 2 * backoff_seconds)

    async def _read(self, session: aiohttp.ClientSession, agent: AgentRecord, stream: Stream) -> str:
        """Read one stream to its end and say how it ended. Raises FrameError where it says what is no frame of ours."""
        parameters = {"metrics": ",".join(self._wanted)} if self._wanted else {}
        headers = self._credentials.headers(agent.url)
        async with session.get(f"{agent.url.rstrip('/')}/frames", params=parameters, headers=headers) as response:
            if response.status != 200:
                return f"answered {response.status}"
            splitter = MessageSplitter()
            layout: Layout | None = None
            async for data in response.content.iter_any():
                received_ns = self._clock.monotonic_ns()
                for message in splitter.feed(data):
                    told = decode(message)
                    if told.node != agent.node:
                        raise FrameError(f"node: {told.node!r} speaks in the stream of {agent.node!r}")
                    if isinstance(told, Layout):
                        layout = told
                        continue
                    if layout is None:
                        raise FrameError(f"frame {told.seq}: it stands before any layout")
                    check_fits(layout, told)
                    if not stream.connected:
                        _log.info("stream of %s (%s) is open", agent.node, agent.url)
                        stream.connected, stream.complaint = True, ""
                    stream.frames += 1
                    stream.received_ns = received_ns
                    self._deliver(layout, told, received_ns)
        return "the agent ended it"
