"""Entry point for all reads of the state and the journal by the API and the pages."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from agent.schema.sample import Sample
from scheduler_feedback.api.reading.listing import Kept, Listing
from scheduler_feedback.api.reading.lists import Lister, Mark
from scheduler_feedback.api.reading.reads import Reads
from scheduler_feedback.api.reading.state_snapshots import Snapshot, Snapshots

SNAPSHOT_SECONDS = 5.0
"""Maximum seconds to wait for a new snapshot. If the cycle's thread is blocked for longer, for example by a disk, the
last snapshot is used. Its now_ns shows its age."""

SHORT_SECONDS = 0.05
"""Maximum seconds to wait for a new snapshot if the last one is recent. The cycle's thread takes longer while it
decides or reads a long listing of Slurm."""

SLICE = 100
"""Number of items of a list that are computed at a time, which takes about a millisecond."""

PIECE_SECONDS = 0.01
"""CPU time after which a piece of work on a whole list ends. A piece has as many slices as fit: with a piece for each
slice, a list of 12,500 nodes waited 125 times for Python's lock, which each busy thread holds for 5 ms."""

MOST_ANSWERS, MOST_ANSWER_BYTES = 512, 32 * 1024 * 1024
"""Maximum number, and maximum total size in bytes, of cached answers. They are reused until the state changes."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Answer:
    """A document as JSON. tag: entity tag, a hash of the content. rest: the mark after which the list continues."""

    content: bytes
    tag: str
    rest: Mark | None = None


class SnapshotReader:
    """Reader of the newest snapshot, with a cache of answers. Call its methods from the event loop of the API."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._documents = Reads("documents")
        self._stories = Reads("stories", rest=0.0)
        self._kept = Kept()
        self._listing: Listing | None = None
        self._answers: OrderedDict[str, tuple[int, Answer]] = OrderedDict()
        self._answer_bytes = 0
        self._making: dict[tuple[str, str, int], asyncio.Task[Answer]] = {}

    def close(self) -> None:
        """Stop reading snapshots."""
        self._documents.close()
        self._stories.close()

    def measures(self) -> Iterator[Sample]:
        """Yield metric samples about the reads. May be called from any thread."""
        yield from self._documents.measures()
        yield from self._stories.measures()

    # --- of the state ------------------------------------------------------------------------------------------------

    async def ask(self, peer: str, question: Callable[[Listing], _T]) -> _T:
        """Return the result of `question` for a state that includes all answered requests (state_snapshots.py).

        Raises BusyError, and any error of `question`.
        """
        snapshot = await self._fresh()
        return await self._documents.run(peer, lambda: question(self._listed(snapshot)))

    async def make(self, peer: str, make: Callable[[], _T]) -> _T:
        """Return the result of `make`, which does not need the state. Raises BusyError, and any error of `make`."""
        return await self._documents.run(peer, make)

    async def document(self, peer: str, key: str, question: Callable[[Listing], Any]) -> Answer:
        """Return the result of `question` as JSON, from the cache if possible.

        key: identifies the question and the reader's rights. Requests with equal keys share an answer until the state
        changes. Raises BusyError, and any error of `question`.
        """
        return await self._answer(peer, key, lambda listing: (question(listing), None))

    async def page(
        self, peer: str, key: str, lister: Lister, mark: Mark | None, most: int, frame: Frame | None = None
    ) -> Answer:
        """Return a page of a list as JSON. Raises BusyError, MarkError, and any error of the lister."""

        def question(listing: Listing) -> tuple[Any, Mark | None]:
            part = lister(listing, mark, most)
            return part.items if frame is None else frame.around(listing, part.items), part.mark

        return await self._answer(peer, key, question)

    async def whole(self, peer: str, key: str, lister: Lister, frame: Frame | None = None) -> AsyncIterator[bytes]:
        """Yield the whole list as JSON, from one snapshot, in pieces of work of about PIECE_SECONDS."""
        snapshot = await self._fresh()
        # Hold this listing to the end: another reader may need a newer one meanwhile.
        listing = await self._documents.run(peer, lambda: self._listed(snapshot), patient=True)
        before, after = b"[", b"]"
        if frame is not None:
            framed = await self._documents.run(
                peer, lambda: msgspec.json.encode(frame.around(listing, [])), patient=True
            )
            before, _, after = framed.partition(frame.gap)
            before, after = before + frame.gap[:-1], b"]" + after
        mark: Mark | None = None
        while True:

            def piece_of(listing: Listing, taken: Mark | None = mark) -> tuple[Any, Mark | None]:
                until, items = time.thread_time() + PIECE_SECONDS, list[Any]()
                while True:
                    part = lister(listing, taken, SLICE)
                    items += part.items
                    taken = part.mark
                    if taken is None or time.thread_time() >= until:
                        return items, taken

            piece_key = f"{key} whole {mark}"
            answer = await self._answer_of(snapshot, peer, piece_key, piece_of, lambda: listing, patient=True)
            yield before + answer.content[1:-1]
            if answer.rest is None:
                break
            mark, before = answer.rest, b","
        yield after

    async def _fresh(self) -> Snapshot:
        waited = self._snapshots.fresh()
        if waited.done():
            return waited.result()
        recent = self._snapshots.recent()
        seconds = SNAPSHOT_SECONDS if recent is None else SHORT_SECONDS
        try:
            return await asyncio.wait_for(asyncio.wrap_future(waited), seconds)
        except TimeoutError:
            return recent or self._snapshots.newest

    def _listed(self, snapshot: Snapshot) -> Listing:
        """Return the lists of this snapshot. Call it on the thread for readers."""
        listing = self._listing
        if listing is None or listing.version < snapshot.version:
            listing = self._listing = Listing(snapshot, self._kept)
        elif listing.version > snapshot.version:
            listing = Listing(snapshot, self._kept)
        return listing

    # --- cache -------------------------------------------------------------------------------------------------------

    async def _answer(self, peer: str, key: str, question: Callable[[Listing], tuple[Any, Mark | None]]) -> Answer:
        snapshot = await self._fresh()
        return await self._answer_of(snapshot, peer, key, question, lambda: self._listed(snapshot))

    async def _answer_of(
        self,
        snapshot: Snapshot,
        peer: str,
        key: str,
        question: Callable[[Listing], tuple[Any, Mark | None]],
        listed: Callable[[], Listing],
        patient: bool = False,
    ) -> Answer:
        version = snapshot.version
        kept = self._answers.get(key)
        if kept is not None and kept[0] == version:
            self._answers.move_to_end(key)
            return kept[1]
        # By peer: a peer does not wait because another peer's pieces are queued.
        task = self._making.get((peer, key, version))
        if task is None:

            def make() -> Answer:
                made = self._answers.get(key)
                if made is not None and made[0] == version:
                    return made[1]
                document, mark = question(listed())
                content = msgspec.json.encode(document)
                return Answer(content, f'"{hashlib.blake2b(content, digest_size=16).hexdigest()}"', mark)

            task = asyncio.ensure_future(self._documents.run(peer, make, patient))
            self._making[peer, key, version] = task
            task.add_done_callback(lambda done: self._made(peer, key, version, done))
        return await asyncio.shield(task)

    def _made(self, peer: str, key: str, version: int, task: asyncio.Task[Answer]) -> None:
        self._making.pop((peer, key, version), None)
        if task.cancelled() or task.exception() is not None:
            return
        answer = task.result()
        earlier = self._answers.get(key)
        if earlier is not None:
            if earlier[0] > version:
                return
            del self._answers[key]
            self._answer_bytes -= len(earlier[1].content)
        self._answers[key] = version, answer
        self._answer_bytes += len(answer.content)
        while len(self._answers) > MOST_ANSWERS or self._answer_bytes > MOST_ANSWER_BYTES:
            _, (_, oldest) = self._answers.popitem(last=False)
            self._answer_bytes -= len(oldest.content)

    # --- of the journal and of files ---------------------------------------------------------------------------------

    async def read(self, peer: str, reading: Callable[[], _T], patient: bool = False) -> _T:
        """Return the result of `reading`, which may wait for the disk. patient: never raise BusyError."""
        return await self._stories.run(peer, reading, patient)


@dataclass(frozen=True, slots=True)
class Frame:
    """JSON document around a long list. The list is encoded separately, in pieces."""

    field: str
    """Name of the field that contains the list."""

    document: Callable[[Listing], dict[str, Any]]
    """Function that returns the document with an empty list."""

    @property
    def gap(self) -> bytes:
        """The encoded key with its empty list, such as '"jobs":[]', into which the items are inserted.

        No text in the document can contain these bytes, because quotation marks in texts are escaped.
        """
        return b'"%b":[]' % self.field.encode()

    def around(self, listing: Listing, items: list[Any]) -> dict[str, Any]:
        """Return the document with these items as its list."""
        return self.document(listing) | {self.field: items}
