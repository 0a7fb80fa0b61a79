"""A few steps of the state machine that checks invariants; ``python -m benchmarks.invariants`` runs millions."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.cluster.state_machine import Invariants

TestInvariants = Invariants.TestCase
TestInvariants.settings = settings(
    max_examples=50, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
