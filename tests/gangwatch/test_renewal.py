"""Renewal of an agent's certificate: at the start, and again when a third of its lifetime remains."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gangwatch.certificates import renewal
from gangwatch.certificates.authority import Authority, new_key, new_request
from gangwatch.certificates.renewal import LEFT, Renewal

COPY = "import os, pathlib, sys; pathlib.Path(sys.argv[2]).write_bytes(pathlib.Path(sys.argv[1]).read_bytes())"


def certificate(begun_days: float, days: float) -> bytes:
    """Return a certificate that has been valid for `begun_days`. days: its whole lifetime."""
    then = datetime.now(UTC) - timedelta(days=begun_days)
    return Authority.make(now=then).issue(new_request(new_key(), ["n0"]), ["n0"], days, then, since=then).certificate


def copying(source: Path, target: Path) -> tuple[str, ...]:
    return sys.executable, "-c", COPY, str(source), str(target)


def test_the_remaining_share_of_a_certificates_lifetime(tmp_path: Path) -> None:
    path = tmp_path / "tls.crt"
    one = Renewal(("true",), path, "n0")
    assert one.left() == 0.0
    path.write_bytes(b"no certificate")
    assert one.left() == 0.0
    path.write_bytes(certificate(20, 30))
    assert one.left() == pytest.approx(LEFT, abs=0.02)
    path.write_bytes(certificate(31, 30))
    assert one.left() == 0.0


def test_an_agent_waits_for_its_first_certificate_and_logs_why_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(renewal, "FIRST_PAUSE_SECONDS", 0.01)
    source, path = tmp_path / "new.crt", tmp_path / "tls.crt"
    asked = 0

    def ended() -> bool:
        nonlocal asked
        asked += 1
        if asked == 2:
            source.write_bytes(certificate(0, 30))
        return asked > 50

    assert Renewal(copying(source, path), path, "n0").first(ended)
    assert path.read_bytes() == source.read_bytes()
    assert "exit code 1" in caplog.text and "No such file" in caplog.text
    assert not Renewal(("/absent/command",), tmp_path / "other.crt", "n0").first(lambda: True)
    assert "/absent/command" in caplog.text


def test_a_certificate_is_renewed_when_a_third_of_its_lifetime_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "CHECK_SECONDS", 0.01)
    source, path, node = tmp_path / "new.crt", tmp_path / "tls.crt", tmp_path / "node"
    source.write_bytes(certificate(0, 30))
    command = (sys.executable, "-c", COPY + f"; pathlib.Path({str(node)!r}).write_text(os.environ['GANGWATCH_NODE'])",
               str(source), str(path))  # fmt: skip
    fresh = certificate(10, 30)
    path.write_bytes(fresh)
    one = Renewal(command, path, "n0")
    one.start()
    try:
        one._thread.join(0.2)
        assert path.read_bytes() == fresh
        path.write_bytes(certificate(21, 30))
        for _ in range(200):
            one._thread.join(0.05)
            if node.exists() and path.read_bytes() == source.read_bytes():
                break
        assert path.read_bytes() == source.read_bytes()
        assert node.read_text() == "n0"
    finally:
        one.stop()
        one._thread.join(10)
    assert not one._thread.is_alive()
