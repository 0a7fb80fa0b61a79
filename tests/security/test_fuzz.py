"""Thousands of malformed inputs for every parser of external data; `python -m benchmarks.fuzz` runs a million."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import benchmarks.fuzz.runner as runner
from benchmarks.fuzz.__main__ import fuzz, main
from benchmarks.fuzz.lines import all_lines, reached
from benchmarks.fuzz.runner import HangError, made, replay, run, targets
from benchmarks.fuzz.target import ACCEPTED, REFUSED, Target

INPUTS = 21_000
SAMPLE = 500


def test_no_parser_fails_and_inputs_reach_most_lines(tmp_path: Path) -> None:
    found = fuzz(INPUTS, 18, list(targets()), 2, SAMPLE, tmp_path)
    assert found["failures"] == 0, [one for one in found["parsers"] if one["failed"]]
    assert found["inputs"] == INPUTS
    assert found["shortfalls"] == []


def test_every_listed_parser_is_fuzzed() -> None:
    names = set(targets())
    for kind in ("slurm-columns", "slurm-jobs-json", "kubelet-pod-resources", "kubernetes-objects", "netlink-rdma",
                 "config-toml", "config-web"):  # fmt: skip
        assert kind in names


# --- the fuzzer itself -----------------------------------------------------------------------------------------------


def parse(data: bytes) -> str:
    if data[0] == 7:
        raise KeyError("seven")
    if data[0] == 8:
        while True:
            pass
    return ACCEPTED if data[0] > 128 else REFUSED


def endless(depth: int) -> int:
    return endless(depth + 1)


BROKEN = Target("broken", lambda chance: chance.randbytes(2), parse, ("benchmarks.fuzz.target",))


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(runner, "targets", lambda: {"broken": BROKEN})
    monkeypatch.setattr(runner, "INPUT_SECONDS", 0.05)
    before = signal.signal(signal.SIGALRM, runner._ring)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("broken")
def test_failures_and_hangs_are_counted_and_saved_for_replay(tmp_path: Path) -> None:
    chunk = run("broken", 1, 0, 1000)
    bad = [number for number in range(1000) if made(BROKEN, 1, number)[0] in (7, 8)]
    assert chunk.failed == len(bad) > 1
    assert sum(chunk.outcomes.values()) == 1000 - len(bad)
    kinds = {failure.error.partition(":")[0] for failure in chunk.failures}
    assert kinds <= {"KeyError", "HangError"}
    path = runner.save(chunk.failures[0], tmp_path)
    with pytest.raises((KeyError, HangError)):
        replay(path)
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"data": None}))
    with pytest.raises((KeyError, HangError)):
        replay(path)
    path.write_text(json.dumps(document | {"target": "gone"}))
    with pytest.raises(ValueError, match="there is no target 'gone'"):
        replay(path)


def test_the_number_of_an_input_determines_it() -> None:
    for target in targets().values():
        assert made(target, 3, 77) == made(target, 3, 77)
    assert len({made(BROKEN, 3, number) for number in range(50)}) > 40


def test_unreached_lines_are_reported() -> None:
    place = ("tests.security.test_fuzz:parse",)
    every = all_lines(place)
    some = reached(place, [lambda: parse(b"\xff")])
    assert some.all == every and 0 < len(some.reached) < len(every)
    assert all(line.startswith(__file__) for line in some.missed())
    more = [lambda: endless(0), lambda: parse(b"\x07"), lambda: parse(b"\x01")]
    assert len(reached(place, more).reached) == len(some.reached) + 1, "also after an input that exhausted the stack"
    with pytest.raises(ValueError, match="no function of that name"):
        all_lines(("tests.security.test_fuzz:absent",))


def test_an_unknown_target_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "no such parser"])
    assert "no parser matches" in capsys.readouterr().err


def test_every_random_choice_comes_from_the_seed() -> None:
    before = random.getstate()
    for target in targets().values():
        for number in range(20):
            made(target, 5, number)
    assert random.getstate() == before
