"""Queue of frames, from which the features, the consumption and the device events are computed together.

Nodes whose layouts have the series in the same places form a cohort. The frames of a cohort are processed in batches of
up to MOST_QUEUED, or earlier if a caller needs the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

import numpy as np

from agent.schema.frame import AnyLayout, EventRecord, Frame
from scheduler_feedback.core.telemetry.fleet_nodes import NodeView
from scheduler_feedback.core.telemetry.series.consumption import Consumption, Places
from scheduler_feedback.core.telemetry.series.counter_features import Counting, Kind
from scheduler_feedback.core.telemetry.series.frame_batch import Batch, Failed, fold_apart
from scheduler_feedback.core.telemetry.series.occurrences import Occurrences
from scheduler_feedback.core.telemetry.series.watched_columns import WatchedColumns

MOST_QUEUED = 256
"""Maximum number of queued frames, not counting earlier samples. Of each node, one is processed at a time. During a
dozen operations, 256 rows of 250 columns fit in a processor's second-level cache."""


FEATURE_SAMPLES = 2
"""Number of samples of a message from which features are computed: the newest, and the one before it, for the rates of
counters. Features of older ones would be replaced before anything reads them."""

_Queued = tuple[NodeView, Frame, bool, int, bool]
"""A node, its frame, whether the node's last frame is of the same boot and agent process, the number of newer samples
in the same message, and whether there are older ones."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Cohort:
    """Nodes whose frames have the same series in the same places."""

    kind: Kind | None
    """Features of the nodes' ranks; None if the nodes have no ranks."""
    places: tuple[Places, ...]
    """Consumption of the ranks of each gang on a node, in the order of the node's groups."""
    columns: WatchedColumns
    """Series that show device events."""


class SeriesQueue:
    """Queued frames of all nodes, in order."""

    def __init__(self, counting: Counting, consumption: Consumption, occurrences: Occurrences) -> None:
        self._counting, self._consumption, self._occurrences = counting, consumption, occurrences
        self._cohorts: WeakValueDictionary[tuple[object, ...], Cohort] = WeakValueDictionary()
        self._queue: list[_Queued] = []
        self._number = self._messages = 0
        self._batches = 0

    def read(self, node: NodeView, layout: AnyLayout, frame: Frame) -> None:
        """Use a new layout for the node's next frames. frame: the first frame with it."""
        self.settle_of(node)
        whole = layout.whole()
        counts = self._counting.read(whole)
        node._watched, columns = self._occurrences.read(whole, frame, self._number + len(self._queue))
        node._kind_row = counts.row
        places = tuple(group.places for group in node._groups)
        key = (counts.kind, columns, *places)
        cohort = self._cohorts.get(key)
        if cohort is None:
            cohort = self._cohorts[key] = Cohort(counts.kind, places, columns)
        node._cohort, node._series_id = cohort, layout.layout_id

    def add(self, node: NodeView, frame: Frame, continues: bool, later: int = 0) -> None:
        """Queue a frame with the node's layout. continues: whether the node's last frame is of the same boot and agent
        process. later: number of samples in the same message that are newer."""
        self._queue.append((node, frame, continues, later, not later and bool(frame.earlier)))
        node._queued = self._batches
        if not later:
            self._messages += 1
            if self._messages >= MOST_QUEUED:
                self.settle()

    def add_events(self, node: NodeView, layout: AnyLayout, frame: Frame, events: Sequence[EventRecord]) -> None:
        """Add the device events that a frame's records report. They precede those that its series show."""
        if node._series_id != layout.layout_id:
            self.read(node, layout, frame)
        self.settle_of(node)  # events of a node keep their order
        self._occurrences.record(events, frame, self._number + len(self._queue))

    def compare(self, node: NodeView, frame: Frame, continues: bool) -> None:
        """Search a frame's series for device events only. The next frame's counters cover both frames."""
        self.settle_of(node)
        assert isinstance(node._cohort, Cohort)
        fold = partial(self._occurrences.fold, node._cohort.columns)
        batch = Batch([node], [frame], [continues], [self._number + len(self._queue)])
        fold_apart(fold, batch, self._occurrences.failed)
        self._number += 1

    def drop(self, node: NodeView) -> None:
        """Remove the node's queued frames."""
        self._queue = [one for one in self._queue if one[0] is not node]

    def settle_of(self, node: NodeView) -> None:
        """Process the queued frames if one of them may be of this node."""
        if node._queued == self._batches:
            self.settle()

    def settle(self) -> None:
        """Process all queued frames. Frames of the same node are processed in order."""
        if not self._queue:
            return
        queue, self._queue, self._messages = self._queue, [], 0
        number = self._number
        self._number += len(queue)
        self._batches += 1
        nodes, frames, continues, later, lasts = zip(*queue, strict=True)
        whole = Batch(nodes, frames, continues, range(number, self._number))
        left: Sequence[int] = range(len(queue))
        while left:
            # First the first frame of each node, then the second ones. Most nodes have only one.
            first = {id(nodes[place]): place for place in reversed(left)}
            now = left if len(first) == len(left) else sorted(first.values())
            alike: dict[object, list[int]] = {}
            for place in now:
                alike.setdefault(nodes[place]._cohort, []).append(place)
            for cohort, places in alike.items():
                assert isinstance(cohort, Cohort)
                featured = [place for place in places if later[place] < FEATURE_SAMPLES]
                batch = whole.only(places)
                if cohort.kind is not None and featured:
                    some = batch if len(featured) == len(places) else whole.only(featured)
                    some.lasts = np.array([lasts[place] for place in featured], np.bool_)
                    fold_apart(cohort.kind._fold, some, self._counting.failed)
                self._fold(cohort, batch)
            done = set(now) if len(now) < len(left) else left
            left = [place for place in left if place not in done]

    def _fold(self, cohort: Cohort, batch: Batch) -> None:
        parts: list[tuple[Callable[[Batch], None], list[Failed]]] = []
        for position, places in enumerate(cohort.places):
            parts.append((partial(places._fold, position), self._consumption.failed))
        parts.append((partial(self._occurrences.fold, cohort.columns), self._occurrences.failed))
        for fold, failed in parts:
            fold_apart(fold, batch, failed)
