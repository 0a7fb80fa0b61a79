"""Tables of verdict kinds and causes: they are complete, and all code that uses them follows them."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from agent.schema.verdicts.causes import CAUSES, Cause
from agent.schema.verdicts.kinds import (
    ACCUSING,
    BLAMING,
    KINDS,
    MOVING,
    OF_OWN_JOB,
    RESTARTING,
    Accused,
    Kind,
    KindRow,
    Response,
    Severity,
    Tone,
    row_of,
)
from gangwatch.display import top_screen
from scheduler_feedback.api.web import verdicts as page
from scheduler_feedback.core.state import Policy
from scheduler_feedback.policies.remediation.mitigation_options import lacks
from tests.core.test_verdict_text import verdict

ROOT = Path(__file__).parents[2]


def missing_cells(row: Any) -> list[str]:
    """Return the names of a row's empty fields. Alerts may be empty if the kind accuses no node and no other job."""
    harmless = isinstance(row, KindRow) and row.accused in (Accused.OWN_JOB, Accused.NOTHING)
    optional = {"alerts"} if harmless else set()
    empty = [field.name for field in fields(row) if getattr(row, field.name) in ("", ())]
    inside = missing_cells(row.wording) if isinstance(row, KindRow) else []
    return [name for name in (*empty, *inside) if name not in optional]


def test_every_kind_and_every_cause_has_a_row() -> None:
    assert list(KINDS) == list(Kind), "add a row for each kind to agent/schema/verdicts/kinds.py"
    assert list(CAUSES) == list(Cause), "add a row for each cause to agent/schema/verdicts/causes.py"


@pytest.mark.parametrize("row", [*KINDS.values(), *CAUSES.values()], ids=[*KINDS, *CAUSES])
def test_no_cell_is_empty(row: Any) -> None:
    assert missing_cells(row) == []


@pytest.mark.parametrize("cell", ["meaning", "alerts", "runbooks", "operator"])
def test_an_empty_cell_is_noticed(cell: str) -> None:
    row = KINDS[Kind.STRAGGLER]
    empty: dict[str, Any] = {cell: () if isinstance(getattr(row, cell), tuple) else ""}
    assert missing_cells(replace(row, **empty)) == [cell]


def test_an_empty_sentence_is_noticed() -> None:
    row = KINDS[Kind.WORKLOAD]
    assert missing_cells(replace(row, wording=replace(row.wording, several=""))) == ["several"]


@pytest.mark.parametrize("row", KINDS.values(), ids=KINDS)
def test_only_accusations_of_others_may_act_or_alert(row: KindRow) -> None:
    harmless = row.accused in (Accused.OWN_JOB, Accused.NOTHING)
    assert harmless == (not row.alerts)
    assert harmless == (row.severity == "info")
    assert not (harmless and row.response is not Response.NONE)
    assert row.severity in get_args(Severity)


@pytest.mark.parametrize("row", KINDS.values(), ids=KINDS)
def test_every_runbook_exists(row: KindRow) -> None:
    for name in row.runbooks:
        assert (ROOT / "docs/runbooks" / f"{name}.md").exists(), f"write the runbook docs/runbooks/{name}.md"


@pytest.mark.parametrize("row", KINDS.values(), ids=KINDS)
def test_page_and_terminal_have_the_colour(row: KindRow) -> None:
    assert row.tone in get_args(Tone) and row.tone in top_screen._TONES
    style = (ROOT / "scheduler_feedback/api/web/static/page.css").read_text()
    assert row.tone == "bad" or re.search(rf"\.verdict\)\.{row.tone} {{ --tone: var\(--{row.tone}\)", style)


def test_sets_of_kinds() -> None:
    """A new kind must be added here. This prevents that it accuses nodes or moves jobs by accident."""
    assert {"straggler", "hang", "health"} == ACCUSING
    assert {"straggler", "hang", "health", "interference"} == BLAMING
    assert {"workload", "stage_imbalance", "sequence_imbalance"} == OF_OWN_JOB
    assert {"straggler", "interference"} == MOVING
    assert {"hang"} == RESTARTING


@pytest.mark.parametrize("kind", Kind)
def test_policies_move_jobs_only_for_kinds_that_may(kind: Kind) -> None:
    refusal = lacks(verdict(kind, Cause.GPU, rank=1, node="node-0", confidence=1.0), Policy())
    allowed = KINDS[kind].response in (Response.MOVE, Response.SEPARATE)
    assert refusal is None if allowed else refusal == ("kind", f"jobs are not moved for verdicts of kind {kind.value}")


@pytest.mark.parametrize("kind", Kind)
def test_page_colours_a_verdict_by_its_kind(kind: Kind) -> None:
    short = str(page.short({"kind": kind.value, "short": "rank 1: slow"}))
    assert f'class="accusation {KINDS[kind].tone}"' in short


def test_a_kind_of_a_newer_release_is_shown_as_unknown() -> None:
    assert row_of("hang") is KINDS[Kind.HANG]
    assert row_of("of-tomorrow") is KINDS[Kind.UNKNOWN]
