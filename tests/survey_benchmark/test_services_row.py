"""Row of MuxFlow: its input, and that protection and sharing have an effect on a small version of it."""

from __future__ import annotations

import pytest

from benchmarks.survey import services

PAIRS = {"a": {"b": 0.6, "a": 0.6}, "b": {"a": 0.8, "b": 0.8}}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("NODES", 1), ("SERVICES", 6), ("JOBS", 12), ("DAYS", 2), ("LONGEST_SECONDS", 2 * 3600)):
        monkeypatch.setattr(services, name, value)
    monkeypatch.setattr(services, "pair_speeds", lambda: PAIRS)


@pytest.mark.usefixtures("small")
def test_the_input_has_services_and_offline_jobs() -> None:
    trace = services.trace_of(0, opportunistic=True)
    serving = [job for job in trace.jobs if job.spec.latency_objective_seconds]
    assert len(serving) == 6 and len(trace.jobs) == 18
    offline = [job.spec for job in trace.jobs if job not in serving]
    assert all(spec.opportunistic and spec.ranks == 1 for spec in offline)
    assert not any(job.spec.opportunistic for job in services.trace_of(0, opportunistic=False).jobs)


@pytest.mark.usefixtures("small")
def test_lending_shortens_completion_times_and_recalls_keep_the_objective() -> None:
    none, lent, blind = (
        services.run(0, services.POLICIES[name], name != "blind") for name in ("none", "muxflow", "blind")
    )
    assert none.lent == 0.0 and none.kept > 0.999
    assert lent.jct < none.jct and lent.lent > 0.01 and lent.recalls > 0
    assert blind.kept < lent.kept
