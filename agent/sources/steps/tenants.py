"""Tenants of a node, and the limits of each tenant on the step socket. Pure: time is an argument.

A tenant is a pod or job if the agent has found it without relying on the process (attested), otherwise the process's
user. A user can start many processes and connections, but cannot choose the tenant. Therefore all limits are per
tenant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from agent.schema.errors import ReporterError

MAX_RING_SLOTS = 65536
"""Maximum number of record slots of a step ring, independent of the quotas. rings.py refuses larger rings."""


class Tenant(NamedTuple):
    """Pod, job or user that owns processes on the node. Limits apply to each tenant."""

    kind: Literal["pod", "job", "user"]
    """Kind of the tenant. The machine reports a 'pod' or 'job'. A 'user' owns processes whose pod or job is unknown."""
    name: str

    @property
    def attested(self) -> bool:
        return self.kind != "user"

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits of a node's step socket, where training processes register.

    They are in section [step_quotas] of the configuration.
    """

    reporters: int = 1024
    """Maximum number of training processes, of all tenants together, that report steps."""
    reporters_unattested: int = 256
    """Maximum number of reporting processes whose pod or job is unknown. The rest of `reporters` is reserved for
    processes whose pod or job the machine reports."""
    reporters_per_pod: int = 64
    reporters_per_job: int = 256
    reporters_per_user: int = 16
    registrations_per_second: float = 4.0
    """Average number of registrations of one tenant per second. In a burst, twice the tenant's maximum number of
    reporting processes may register."""
    ring_slots: int = MAX_RING_SLOTS
    """Maximum number of record slots of one step ring."""
    ring_slots_unattested: int = 16384
    """Maximum number of record slots of one step ring of a process whose pod or job is unknown."""
    name_length: int = 128
    """Maximum number of characters in the gang name that a process claims if its pod or job is unknown."""

    def reporters_of(self, tenant: Tenant) -> int:
        """Return the maximum number of processes of this tenant that may report steps."""
        if tenant.kind == "pod":
            return self.reporters_per_pod
        return self.reporters_per_job if tenant.kind == "job" else self.reporters_per_user

    def slots_of(self, tenant: Tenant) -> int:
        """Return the maximum number of record slots of one step ring of this tenant."""
        return self.ring_slots if tenant.attested else self.ring_slots_unattested


CONNECTIONS_A_TENANT = 128
"""Maximum number of connections of one tenant that have not registered yet. Further connections are refused."""

CONNECTIONS_UNATTESTED = 256
"""Maximum number of connections, of all unattested processes together, that have not registered yet. Further ones are
refused."""

CONNECTIONS = 512
"""Maximum number of connections, of all tenants together, that have not registered yet. Ranks of a job connect
together, but each registers within milliseconds. A refused rank retries within a second."""

CONNECTING_BURST = 512
"""Number of new connections that a tenant may open at once."""

CONNECTING_PER_SECOND = 32.0
"""Number of new connections that a tenant may open per second on average. Further connections are refused before any
data is read."""

REFUSALS_BURST = 8
"""Number of refusals of a tenant that may be reported at once."""

REFUSALS_PER_SECOND = 8 / 60
"""Number of refusals of a tenant that are reported per second on average, each with its reason. Further refusals are
only counted."""

FORGET_SECONDS = 60.0
"""Time in seconds after which a tenant without connections is removed from memory. The tenant's rate limits (token
buckets) are full again by then, so a new connection of the tenant starts from the same state."""


class Allowance:
    """Token bucket: it allows `burst` tokens at once, and `rate` tokens per second on average.

    Each token permits one connection, registration or reported refusal.
    """

    __slots__ = ("_at", "_level")

    def __init__(self) -> None:
        self._level: float | None = None
        self._at = 0.0

    def take(self, now: float, rate: float, burst: float) -> float:
        """Take a token and return 0.0; if there is no token, return the seconds until the next token."""
        level = burst if self._level is None else min(burst, self._level + (now - self._at) * rate)
        self._at = now
        if level < 1.0:
            self._level = level
            return (1.0 - level) / rate
        self._level = level - 1.0
        return 0.0

    def is_full(self, now: float, rate: float, burst: float) -> bool:
        """Return whether the bucket has all `burst` tokens."""
        return self._level is None or self._level + (now - self._at) * rate >= burst


@dataclass(slots=True)
class _Account:
    """Current connections, training processes and CPU time of one tenant."""

    connections: int = 0
    reporters: int = 0
    closed: int = 0
    used_at: float = 0.0
    processor_seconds: float = 0.0
    connecting: Allowance = field(default_factory=Allowance)
    registering: Allowance = field(default_factory=Allowance)
    refusals: Allowance = field(default_factory=Allowance)


class Accounts:
    """Current connections, training processes and CPU time of each tenant of a step socket, checked against the limits.

    Not thread-safe. A connection counts for the tenant that is known at connect time, a training process for the tenant
    that is known after the registration. now: time in seconds of any clock.
    """

    def __init__(self, quotas: Quotas) -> None:
        self.quotas = quotas
        self._accounts: dict[Tenant, _Account] = {}
        self._connections = {True: 0, False: 0}  # by whether their tenant is attested
        self._reporters = {True: 0, False: 0}

    def __len__(self) -> int:
        return len(self._accounts)

    def connect(self, tenant: Tenant, now: float) -> None:
        """Count a new connection of the tenant. ``disconnect`` ends this. Raise ReporterError if a limit is reached."""
        account = self._account(tenant, now)
        wait_seconds = account.connecting.take(now, CONNECTING_PER_SECOND, CONNECTING_BURST)
        if wait_seconds:
            raise ReporterError(
                f"{tenant} opens more than {CONNECTING_PER_SECOND:g} connections per second: keep one open for each "
                f"process, and try again in {math.ceil(wait_seconds)} s",
                "rate",
            )
        if account.connections >= CONNECTIONS_A_TENANT:
            raise ReporterError(
                f"{tenant} has {account.connections} unregistered connections, the maximum: send the registration, or "
                "close them",
                "quota",
            )
        if not tenant.attested and self._connections[False] >= CONNECTIONS_UNATTESTED:
            raise ReporterError(
                f"unattested processes have {CONNECTIONS_UNATTESTED} unregistered connections, the maximum: try again "
                "later",
                "full",
            )
        if sum(self._connections.values()) >= CONNECTIONS:
            raise ReporterError(f"{CONNECTIONS} connections are unregistered, the maximum: try again later", "full")
        account.connections += 1
        self._connections[tenant.attested] += 1

    def disconnect(self, tenant: Tenant) -> None:
        """Stop counting a connection that has ended or has registered."""
        self._accounts[tenant].connections -= 1
        self._connections[tenant.attested] -= 1

    def register(self, tenant: Tenant, ring_slots: int, now: float) -> None:
        """Count a newly registered process against the limits of its tenant. Raise ReporterError if a limit is reached.

        Call ``close`` when the connection of the process ends, and ``forget`` when its ring has been read completely.
        Then the process is no longer counted.
        """
        quotas = self.quotas
        account = self._account(tenant, now)
        most = quotas.reporters_of(tenant)
        if ring_slots > quotas.slots_of(tenant):
            key = "ring_slots" if tenant.attested else "ring_slots_unattested"
            raise ReporterError(
                f"ring of {ring_slots} slots; {tenant} may use at most {quotas.slots_of(tenant)} (step_quotas.{key}): "
                "use a smaller ring",
                "ring",
            )
        if account.reporters >= most or account.closed >= most:
            remedy = "" if tenant.attested else "start them in a job or pod, "
            raise ReporterError(
                f"{tenant} has {account.reporters} step reporters, the maximum "
                f"(step_quotas.reporters_per_{tenant.kind}): close some, {remedy}or ask for a higher limit",
                "quota",
            )
        if not tenant.attested and self._reporters[False] >= quotas.reporters_unattested:
            raise ReporterError(
                f"{quotas.reporters_unattested} unattested processes report on this node, the maximum "
                "(step_quotas.reporters_unattested); the other slots are reserved for attested ranks: start this "
                "process in a pod or job, or try again later",
                "full",
            )
        if sum(self._reporters.values()) >= quotas.reporters:
            raise ReporterError(
                f"{quotas.reporters} processes report on this node, the maximum (step_quotas.reporters): try again "
                "later, or ask for a higher limit",
                "full",
            )
        rate = quotas.registrations_per_second
        wait_seconds = account.registering.take(now, rate, 2 * most)
        if wait_seconds:
            raise ReporterError(
                f"{tenant} registers more than {rate:g} times per second (step_quotas.registrations_per_second): keep "
                f"connections open, and try again in {math.ceil(wait_seconds)} s",
                "rate",
            )
        account.reporters += 1
        self._reporters[tenant.attested] += 1

    def close(self, tenant: Tenant) -> None:
        """Count a process as closed, because its connection has ended. Its ring may still contain unread records."""
        account = self._accounts[tenant]
        account.reporters -= 1
        account.closed += 1
        self._reporters[tenant.attested] -= 1

    def forget(self, tenant: Tenant) -> None:
        """Stop counting a closed process whose ring was read completely."""
        self._accounts[tenant].closed -= 1

    def may_report_refusal(self, tenant: Tenant, now: float) -> bool:
        """Return whether to log another refusal of this tenant with its reason. Refusals that are not logged are
        counted."""
        return not self._account(tenant, now).refusals.take(now, REFUSALS_PER_SECOND, REFUSALS_BURST)

    def spend(self, tenant: Tenant, processor_seconds: float, now: float) -> None:
        """Add CPU time, in seconds, that was used to serve this tenant."""
        self._account(tenant, now).processor_seconds += processor_seconds

    def spent(self, tenant: Tenant) -> float:
        """Return the CPU time in seconds used to serve this tenant since the last ``settle``."""
        account = self._accounts.get(tenant)
        return 0.0 if account is None else account.processor_seconds

    def settle(self, now: float) -> None:
        """Reset the CPU time of all tenants, and remove tenants that were idle for FORGET_SECONDS."""
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
    """Divide `budget` fairly among the requested amounts in `wanted`. Return what each request gets.

    The rule is max-min fairness. A request of at most budget / len(wanted) gets its full amount. Larger requests get
    equal shares of the rest.
    """
    shares = [0] * len(wanted)
    left = budget
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    for position, index in enumerate(order):
        shares[index] = min(wanted[index], left // (len(order) - position))
        left -= shares[index]
    return shares
