"""List of a detector's results, and the comparison of two lists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.detection import findings
from benchmarks.detection.findings import Recording, Row, changes, loaded
from scheduler_feedback.sim.world.outputs.node_events import WALL_START_NS

SECOND = 1_000_000_000


class Judge(Recording):
    """Recording in which verdicts of kind health are right, and all others wrong."""

    def is_right(self, row: Row) -> bool | None:
        return row.rest[1] == "health" if row.type == "verdict" else None


def verdict(name: str, at: int, kind: str = "health", cause: str = "nic", ranks: tuple[int, ...] = (3,)) -> Row:
    rest = (name, kind, "job", ranks[0], "node", cause, 0.9, 1.2, "node", "", "", ranks[1:])
    return Row("steps-0", WALL_START_NS + at * SECOND, "verdict", rest)


def difference(before: list[Row], after: list[Row]) -> list[tuple[str, bool | None, str, float]]:
    return [(one.sign, one.right, one.others, one.seconds) for one in changes(before, Judge(after))]


def test_a_changed_verdict_is_compared_with_the_other_list() -> None:
    first, wrong = verdict("a", 10), verdict("w", 5, "straggler", ranks=(3, 4))
    assert difference([first], [first]) == []
    assert difference([first], []) == [("-", True, "none", 0.0)]
    assert difference([first, verdict("b", 20, cause="pcie")], [first]) == [("-", True, "right verdict active", 0.0)]
    assert difference([first], [verdict("b", 25)]) == [
        ("-", True, "same accusation, other time", 15.0),
        ("+", True, "right verdict active", 0.0),
    ]
    assert difference([first], [wrong]) == [
        ("+", False, "right verdict at another time", 0.0),
        ("-", True, "wrong verdict active", 0.0),
    ]
    assert difference([first], [verdict("a", 10, cause="pcie")])[0][2] == "same verdict, other detail"
    assert difference([verdict("b", 20, ranks=(5,), cause="pcie"), first], [first])[0][2] == "none", "another rank"


def test_a_cleared_verdict_is_not_active() -> None:
    first, late = verdict("a", 10), verdict("b", 20, cause="pcie")
    over = Row("steps-0", WALL_START_NS + 15 * SECOND, "cleared", ("a", "over"))
    assert difference([first, over, late], [first, over]) == [("-", True, "right verdict at another time", 0.0)]
    later = replace(over, at_ns=over.at_ns + 5 * SECOND)
    assert difference([first, over], [first, later]) == [
        ("-", None, "also cleared", 5.0),
        ("+", None, "also cleared", 5.0),
    ]


def test_a_recorded_list_compares_equal_to_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--cells", "2", "--healthy-days", "0"]
    assert findings.main([*arguments, "--json"]) == 0
    text = capsys.readouterr().out
    assert any(row.type == "verdict" for row in loaded(text))
    (tmp_path / "before.json").write_text(text)
    assert findings.main([*arguments, "--before", str(tmp_path / "before.json")]) == 0
    assert capsys.readouterr().out == ""
