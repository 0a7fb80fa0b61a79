"""Registry of the journal's formats: the first release that can read each kind of event, action and state.

Every release can read the stores of earlier releases. An earlier release can read the store of a later one only if it
can decode everything in that store. KINDS and FEATURES name the additions that earlier releases cannot decode. A store
records which of these additions it contains (``scheduler_feedback.journal.format_needs``), so that an earlier release
refuses the store with a clear message.

To add a kind of event or action: add it to KINDS with the version in pyproject.toml. To add a member to a journalled
enum, or a field whose absence would mislead an earlier release: add a Feature. Then run
``python -m tests.fixtures.record``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scheduler_feedback.core.actions import StartGang, StopGang
from scheduler_feedback.core.events import (
    ActionFailed,
    AttemptEnded,
    AttemptRunning,
    AttemptUnknown,
    CancelRequested,
    FirstStep,
    FreezeSet,
    Hosted,
    HostWaits,
    LatencyMeasured,
    MemoryMeasured,
    NodeCommand,
    NodeCommanded,
    NodeSeen,
    PolicySet,
    PowerSeen,
    Progressed,
    RankFailed,
    SharedSpeed,
    SpeedMeasured,
    Submitted,
    Tick,
    VerdictJudged,
)
from scheduler_feedback.core.verdict import Abstention, Cleared, Verdict

FIRST_RELEASE = "0.1.0"
"""First release. A store that names no release can be read by this release and every later one."""

KINDS: dict[type, str] = {
    Submitted: "0.1.0",
    CancelRequested: "0.1.0",
    NodeCommanded: "0.1.0",
    VerdictJudged: "0.1.0",
    FreezeSet: "0.1.0",
    PolicySet: "0.1.0",
    NodeSeen: "0.1.0",
    AttemptRunning: "0.1.0",
    Hosted: "0.1.0",
    HostWaits: "0.1.0",
    AttemptEnded: "0.1.0",
    RankFailed: "0.1.0",
    AttemptUnknown: "0.1.0",
    FirstStep: "0.1.0",
    Progressed: "0.1.0",
    SharedSpeed: "0.1.0",
    LatencyMeasured: "0.1.0",
    SpeedMeasured: "0.1.0",
    MemoryMeasured: "0.1.0",
    PowerSeen: "0.1.0",
    ActionFailed: "0.1.0",
    Verdict: "0.1.0",
    Cleared: "0.1.0",
    Abstention: "0.1.0",
    Tick: "0.1.0",
    StartGang: "0.1.0",
    StopGang: "0.1.0",
}
"""Kinds of events and actions, each with the first release that reads it. A kind is never removed."""


@dataclass(frozen=True, slots=True)
class Feature:
    """Part of a journalled value that releases before `since` cannot read."""

    name: str  # unique, as stores record it: 'StopReason.HANG', 'Submitted.deadline'
    since: str  # the first release that reads it
    kind: type  # of the values that may contain it: an event, an action, or State
    used_by: Callable[[Any], bool] = lambda _: True  # whether a value of the kind contains it


FEATURES: tuple[Feature, ...] = (
    Feature("NodeCommand.REMOVE", "0.1.0", NodeCommanded, lambda event: event.command is NodeCommand.REMOVE),
    Feature("NodeCommanded.drain", "0.1.0", NodeCommanded, lambda event: event.drain),
)
"""Additions to existing kinds since their first release. A feature is never removed."""


def version_key(release: str) -> tuple[int, ...]:
    """Return the numbers of a release as a sort key: (0, 2) for '0.2.0' and for '0.2.0rc1'.

    Raises ValueError if the text does not begin with a number.
    """
    numbers: list[int] = []
    for part in release.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    if not numbers:
        raise ValueError(f"{release!r} is no release")
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


class Formats:
    """Kinds and features that one release can read.

    names: name of each kind or feature that a store may record -> first release that reads it. newest: the newest
    release in `names`.
    """

    __slots__ = ("_later", "names", "newest")

    def __init__(self, kinds: Mapping[type, str], features: Iterable[Feature] = ()) -> None:
        all_features = [*(Feature(kind.__name__, since, kind) for kind, since in kinds.items()), *features]
        self.names = {feature.name: feature.since for feature in all_features}
        self.newest = max(self.names.values(), key=version_key, default=FIRST_RELEASE)
        self._later: dict[type, list[Feature]] = {}
        for feature in all_features:
            if version_key(feature.since) > version_key(FIRST_RELEASE):
                self._later.setdefault(feature.kind, []).append(feature)

    def used_by(self, values: Iterable[object]) -> dict[str, str]:
        """Return the kinds and features in these values that release 0.1.0 cannot read: name -> oldest release."""
        if not self._later:
            return {}
        return {
            feature.name: feature.since
            for value in values
            for feature in self._later.get(type(value), ())
            if feature.used_by(value)
        }


FORMATS = Formats(KINDS, FEATURES)
"""Formats that this release reads and writes."""
