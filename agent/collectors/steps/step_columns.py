"""Series (columns) of the ranks' steps, with a limit on the rate at which series are added and removed.

Pure: time is an argument.

Each change of the columns needs a new layout for the whole node. The layout is sent to every subscriber, and every
exposition is rendered from scratch. Therefore the rate of changes is limited per tenant, and further changes are
delayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from agent.collectors.block import Block
from agent.schema.errors import REFUSAL_REASONS
from agent.schema.frame import Column, Member
from agent.sources.steps.step_messages import Place
from agent.sources.steps.tenants import Allowance, Tenant

CHANGES_BURST, CHANGES_PER_SECOND = 8, 0.2
"""Limit on how often the series of one tenant's ranks may change: number of changes in a burst, and average per second.
A starting job makes three or four changes: its ranks register within a few samples and report their positions later."""

REFUSED = "gangwatch_step_reporters_refused_total"

RECORD_COUNTERS = ("gangwatch_step_records_malformed_total", "gangwatch_step_records_lost_total")

RANK_COUNTERS = (
    "gangwatch_rank_steps_total",
    "gangwatch_rank_step_seconds_total",
    "gangwatch_rank_wait_seconds_total",
    "gangwatch_rank_tokens_total",
    "gangwatch_rank_collectives_entered_total",
    "gangwatch_rank_collectives_left_total",
    "gangwatch_rank_time_shift_seconds_total",
)

OWN_COUNTERS = len(REFUSAL_REASONS) + len(RECORD_COUNTERS)
"""Number of counters in the block that describe the agent and not a rank. They precede the counters of the ranks."""

Ranks = tuple[tuple[Member, Place], ...]
"""Ranks of one tenant that have series, each with its position in the job's parallelism (for example its pipeline
stage)."""


def _order(rank: tuple[Member, Place]) -> tuple[str, int, int]:
    member = rank[0]
    return member.gang, member.attempt, member.rank


class StepColumns:
    """The step collector's block of series. A new block is made when a rank gets or loses its series."""

    def __init__(self) -> None:
        self.block = Block()
        self.members: tuple[Member, ...] = ()
        self._placed: tuple[Member, ...] = ()
        self._ranks: dict[Tenant, Ranks] | None = None
        self._changes: dict[Tenant, Allowance] = {}

    def follow(self, wanted: Mapping[Tenant, Iterable[tuple[Member, Place]]], now: float) -> None:
        """Change the series to those of the `wanted` ranks, within the limit of each tenant. now: monotonic seconds."""
        before = self._ranks or {}
        ranks: dict[Tenant, Ranks] = {}
        for tenant in dict.fromkeys((*before, *wanted)):
            asked = tuple(sorted(wanted.get(tenant, ()), key=_order))
            shown = before.get(tenant, ())
            if asked != shown:
                allowance = self._changes.setdefault(tenant, Allowance())
                if allowance.take(now, CHANGES_PER_SECOND, CHANGES_BURST):
                    asked = shown
            if asked:
                ranks[tenant] = asked
        for tenant in self._changes.keys() - ranks.keys():
            if self._changes[tenant].is_full(now, CHANGES_PER_SECOND, CHANGES_BURST):
                del self._changes[tenant]
        if ranks != self._ranks:
            self._ranks = ranks
            self._lay_out(sorted((one for each in ranks.values() for one in each), key=_order))

    def _lay_out(self, ranks: Sequence[tuple[Member, Place]]) -> None:
        """Make a block of series: the agent's own, each rank's, and the positions of ranks (data, stage, ...) that are
        known."""
        gauges = [Column("gangwatch_step_reporters")]
        counters = [Column(REFUSED, (("reason", reason),)) for reason in REFUSAL_REASONS]
        counters.extend(Column(name) for name in RECORD_COUNTERS)
        places = []
        for member, place in ranks:
            labels = (("attempt", str(member.attempt)), ("gang", member.gang), ("rank", str(member.rank)))
            gauges.append(Column("gangwatch_rank_step", labels))
            counters.extend(Column(name, labels) for name in RANK_COUNTERS)
            if place != Place():
                indices = msgspec.structs.asdict(place).items()
                words = {name: "" if index is None else str(index) for name, index in indices}
                places.append(Column("gangwatch_rank_place_info", tuple(sorted((dict(labels) | words).items()))))
        self.block = Block(gauges + places, counters)
        self.members = tuple(member for member, _ in ranks)
        self._placed = tuple(member for member, place in ranks if place != Place())

    def fill(
        self,
        reporters: int,
        own: Sequence[int],
        ranks: Mapping[Member, tuple[int | None, Sequence[int | None]]],
    ) -> Block:
        """Set the values of the block and return it.

        reporters: number of reporting processes. own: values of the first OWN_COUNTERS counters of the block. ranks:
        newest step and values of RANK_COUNTERS of each rank, None if not known. The values of a rank that has series
        but is not in `ranks` are absent.
        """
        block = self.block
        block.clear()
        block.set_gauge(0, reporters)
        for index, total in enumerate(own):
            block.set_counter(index, total)
        for row, member in enumerate(self.members):
            newest_step, totals = ranks.get(member, (None, ()))
            if newest_step is not None:
                block.set_gauge(1 + row, newest_step)
            for index, value in enumerate(totals, OWN_COUNTERS + row * len(RANK_COUNTERS)):
                if value is not None:
                    block.set_counter(index, value)
        for row, member in enumerate(self._placed, 1 + len(self.members)):
            if member in ranks:
                block.set_gauge(row, 1.0)
        return block
