"""Columns of the ranks' steps, with a limit on how often they may change. Pure: time is an argument.

Each change of the columns is a new layout for the whole node. The layout is sent to every subscriber, and every
exposition is rendered from scratch. So the rate of changes is limited per tenant, and further changes are delayed.
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
"""Limit on changes of one tenant's ranks and of their positions: burst, and average rate per second. A starting job
makes three or four changes: its ranks register within a few samples and report their positions later."""

REFUSED = "gangwatch_step_reporters_refused_total"

RECORD_COUNTERS = ("gangwatch_step_records_malformed_total", "gangwatch_step_records_lost_total")

RANK_COUNTERS = (
    "gangwatch_rank_steps_total",
    "gangwatch_rank_step_seconds_total",
    "gangwatch_rank_wait_seconds_total",
    "gangwatch_rank_tokens_total",
    "gangwatch_rank_collectives_entered_total",
    "gangwatch_rank_collectives_left_total",
)

OWN_COUNTERS = len(REFUSAL_REASONS) + len(RECORD_COUNTERS)
"""Number of the agent's own counters. They precede the counters of the ranks. The agent's only gauge precedes the
gauges of the ranks."""

Ranks = tuple[tuple[Member, Place], ...]
"""Ranks of a tenant that have series, with their positions in the job's parallel layout."""


def _order(rank: tuple[Member, Place]) -> tuple[str, int, int]:
    member = rank[0]
    return member.gang, member.attempt, member.rank


class StepColumns:
    """The block of the step collector. It is replaced when a tenant's ranks change."""

    def __init__(self) -> None:
        self.block = Block()
        self.members: tuple[Member, ...] = ()
        self._placed: tuple[Member, ...] = ()
        self._ranks: dict[Tenant, Ranks] | None = None
        self._changes: dict[Tenant, Allowance] = {}

    def follow(self, wanted: Mapping[Tenant, Iterable[tuple[Member, Place]]], now: float) -> None:
        """Update the columns to the `wanted` ranks, within the change limit of each tenant. now: monotonic seconds."""
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
        """Make a block: the agent's own columns, then those of each rank, then the known positions of ranks."""
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
        """Fill the block and return it.

        own: values of the agent's OWN_COUNTERS counters. ranks: newest step and values of RANK_COUNTERS of each rank,
        None if not known. The values of a rank that has columns but is not in `ranks` are absent.
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
