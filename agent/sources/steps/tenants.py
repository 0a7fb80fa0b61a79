"""Tenants of a node, and what each may take of the step socket. Pure: time is an argument.

A tenant is whom the machine attests: a pod, a job of Slurm or of the local backend, or else the user whose process
nothing attests. Anybody can start processes and make connections; nobody can choose the pod, job or user that the
kernel names. So every limit is per tenant, and one tenant's flood uses up no other tenant's share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from agent.schema.errors import ReporterError

MAX_RING_SLOTS = 65536
"""Most slots of any ring, whatever the quotas say: rings.py reads no larger one."""


class Tenant(NamedTuple):
    """kind: 'pod' and 'job' are attested by the machine; 'user' is the kernel's user id of an unattested process."""

    kind: Literal["pod", "job", "user"]
    name: str

    @property
    def attested(self) -> bool:
        return self.kind != "user"

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits of a node's step socket (section [step_quotas] of the configuration).

    reporters: of all tenants together. reporters_unattested: of all unattested processes together; the rest of
    `reporters` is reserved for attested ranks. reporters_per_pod, reporters_per_job, reporters_per_user: of one tenant.
    registrations_per_second: of one tenant, on average; it may first make twice as many at once as it may have
    reporters. ring_slots, ring_slots_unattested: of one ring. name_length: characters in the name that an unattested
    process gives to its gang.
    """

    reporters: int = 1024
    reporters_unattested: int = 256
    reporters_per_pod: int = 64
    reporters_per_job: int = 256
    reporters_per_user: int = 16
    registrations_per_second: float = 4.0
    ring_slots: int = MAX_RING_SLOTS
    ring_slots_unattested: int = 16384
    name_length: int = 128

    def reporters_of(self, tenant: Tenant) -> int:
        """Most reporters of this tenant."""
        if tenant.kind == "pod":
            return self.reporters_per_pod
        return self.reporters_per_job if tenant.kind == "job" else self.reporters_per_user

    def slots_of(self, tenant: Tenant) -> int:
        """Most slots of a ring of this tenant."""
        return self.ring_slots if tenant.attested else self.ring_slots_unattested


CONNECTIONS_A_TENANT = 128
CONNECTIONS_UNATTESTED = 256
CONNECTIONS = 512
"""Most connections that have not registered yet: of one tenant, of all unattested ones, and of all. A job's ranks start
together, and each is registered within milliseconds; the rest try again within a second."""

CONNECTING_BURST = 512
CONNECTING_PER_SECOND = 32.0
"""Connections that one tenant may open at once, and on average. What is more is refused before anything is read."""

REFUSALS_BURST = 8
REFUSALS_PER_SECOND = 8 / 60
"""Refusals of one tenant that are reported in words, beside being counted: at once, and on average."""

FORGET_SECONDS = 60.0
"""A tenant without connections is forgotten after this time, which is longer than its allowances take to fill up."""


class Allowance:
    """A token bucket: `burst` at once, `rate` a second on average."""

    __slots__ = ("_at", "_level")

    def __init__(self) -> None:
        self._level: float | None = None
        self._at = 0.0

    def take(self, now: float, rate: float, burst: float) -> float:
        """Take one and return 0.0, or take nothing and return the seconds after which there is one."""
        level = burst if self._level is None else min(burst, self._level + (now - self._at) * rate)
        self._at = now
        if level < 1.0:
            self._level = level
            return (1.0 - level) / rate
        self._level = level - 1.0
        return 0.0

    def is_full(self, now: float, rate: float, burst: float) -> bool:
        """Whether it is as if nothing had ever been taken."""
        return self._level is None or self._level + (now - self._at) * rate >= burst


@dataclass(slots=True)
class _Account:
    """What one tenant uses now."""

    connections: int = 0
    reporters: int = 0
    closed: int = 0
    used_at: float = 0.0
    processor_seconds: float = 0.0
    connecting: Allowance = field(default_factory=Allowance)
    registering: Allowance = field(default_factory=Allowance)
    refusals: Allowance = field(default_factory=Allowance)


class Accounts:
    """Who uses what of one step socket; says what is still allowed. Of one thread.

    Connections are accounted to the tenant that they seem to be of when they come; reporters to the one that is
    attested. `now` is any clock's, in seconds.
    """

    def __init__(self, quotas: Quotas) -> None:
        self.quotas = quotas
        self._accounts: dict[Tenant, _Account] = {}
        self._connections = {True: 0, False: 0}  # by whether their tenant is attested
        self._reporters = {True: 0, False: 0}

    def __len__(self) -> int:
        return len(self._accounts)

    def connect(self, tenant: Tenant, now: float) -> None:
        """Account for a new connection, which ``disconnect`` or ``register`` ends. Raises ReporterError."""
        account = self._account(tenant, now)
        wait_seconds = account.connecting.take(now, CONNECTING_PER_SECOND, CONNECTING_BURST)
        if wait_seconds:
            raise ReporterError(
                f"{tenant} opens more than {CONNECTING_PER_SECOND:g} connections a second: keep one open for each "
                f"process, and try again in {math.ceil(wait_seconds)} s",
                "rate",
            )
        if account.connections >= CONNECTIONS_A_TENANT:
            raise ReporterError(
                f"{tenant} has {account.connections} connections that have not registered, which is the most allowed: "
                "send the registration, or close them",
                "quota",
            )
        if not tenant.attested and self._connections[False] >= CONNECTIONS_UNATTESTED:
            raise ReporterError(
                f"{CONNECTIONS_UNATTESTED} connections of unattested processes have not registered: try again later",
                "full",
            )
        if sum(self._connections.values()) >= CONNECTIONS:
            raise ReporterError(f"{CONNECTIONS} connections have not registered: try again later", "full")
        account.connections += 1
        self._connections[tenant.attested] += 1

    def disconnect(self, tenant: Tenant) -> None:
        """A connection that ``connect`` has accounted for has ended, or has registered."""
        self._accounts[tenant].connections -= 1
        self._connections[tenant.attested] -= 1

    def register(self, tenant: Tenant, ring_slots: int, now: float) -> None:
        """Account for a reporter, which ``close`` and ``forget`` end. Raises ReporterError."""
        quotas = self.quotas
        account = self._account(tenant, now)
        most = quotas.reporters_of(tenant)
        if ring_slots > quotas.slots_of(tenant):
            key = "ring_slots" if tenant.attested else "ring_slots_unattested"
            raise ReporterError(
                f"a ring of {ring_slots} slots; {tenant} may use {quotas.slots_of(tenant)} (step_quotas.{key}): use a "
                "smaller ring",
                "ring",
            )
        if account.reporters >= most or account.closed >= most:
            remedy = "" if tenant.attested else "start them in a job or pod, "
            raise ReporterError(
                f"{tenant} has {account.reporters} step reporters, which is the most allowed "
                f"(step_quotas.reporters_per_{tenant.kind}): close some, {remedy}or have the limit raised",
                "quota",
            )
        if not tenant.attested and self._reporters[False] >= quotas.reporters_unattested:
            raise ReporterError(
                f"{quotas.reporters_unattested} unattested processes report on this node, which is the most allowed "
                "(step_quotas.reporters_unattested); the other slots are reserved for attested ranks: start this "
                "process in a pod or job, or try again later",
                "full",
            )
        if sum(self._reporters.values()) >= quotas.reporters:
            raise ReporterError(
                f"{quotas.reporters} processes report on this node, which is the most allowed (step_quotas.reporters): "
                "try again later, or have the limit raised",
                "full",
            )
        rate = quotas.registrations_per_second
        wait_seconds = account.registering.take(now, rate, 2 * most)
        if wait_seconds:
            raise ReporterError(
                f"{tenant} registers more than {rate:g} times a second (step_quotas.registrations_per_second): keep "
                f"connections open, and try again in {math.ceil(wait_seconds)} s",
                "rate",
            )
        account.reporters += 1
        self._reporters[tenant.attested] += 1

    def close(self, tenant: Tenant) -> None:
        """A reporter's connection has ended; its ring may hold records that are not read yet."""
        account = self._accounts[tenant]
        account.reporters -= 1
        account.closed += 1
        self._reporters[tenant.attested] -= 1

    def forget(self, tenant: Tenant) -> None:
        """The ring of a closed reporter has been read to its end."""
        self._accounts[tenant].closed -= 1

    def may_report_refusal(self, tenant: Tenant, now: float) -> bool:
        """Whether another refusal of this tenant is reported in words; all are counted."""
        return not self._account(tenant, now).refusals.take(now, REFUSALS_PER_SECOND, REFUSALS_BURST)

    def spend(self, tenant: Tenant, processor_seconds: float, now: float) -> None:
        """Processor time was used for this tenant."""
        self._account(tenant, now).processor_seconds += processor_seconds

    def spent(self, tenant: Tenant) -> float:
        """Processor seconds used for this tenant since the newest ``settle``: who used least is served first."""
        account = self._accounts.get(tenant)
        return 0.0 if account is None else account.processor_seconds

    def settle(self, now: float) -> None:
        """Begin a new second of ``spent``; forget tenants that have used nothing for FORGET_SECONDS."""
        idle = now - FORGET_SECONDS
        for tenant, account in list(self._accounts.items()):
            account.processor_seconds = 0.0
            if account.used_at < idle and not (account.connections or account.reporters or account.closed):
                del self._accounts[tenant]

    def _account(self, tenant: Tenant, now: float) -> _Account:
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account()
        account.used_at = now
        return account


def fair_shares(wanted: Sequence[int], budget: int) -> list[int]:
    """How much of `budget` each gets: what it wants, or an equal part of what the more modest leave (max-min fair).

    Who wants no more than budget / len(wanted) gets all of it, whatever the others want.
    """
    shares = [0] * len(wanted)
    left = budget
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    for position, index in enumerate(order):
        shares[index] = min(wanted[index], left // (len(order) - position))
        left -= shares[index]
    return shares
