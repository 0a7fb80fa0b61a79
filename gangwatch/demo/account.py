"""The demo's report, from the journal, the agents' streams, and a comparison run of the training without gangwatch."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from gangwatch.demo.listener import SeenStep
from gangwatch.demo.play import TRAINING_RANKS, Play, run_training, training_command
from gangwatch.demo.report import (
    LOCAL_LIMITS,
    Limits,
    Truth,
    failures,
    false_verdicts,
    is_true,
    per_step,
    steps_repeated,
    typical,
)
from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.events import Event, FirstStep
from scheduler_feedback.core.state import State
from scheduler_feedback.core.verdict import Abstention, Verdict
from scheduler_feedback.core.verdict_text import sentence
from scheduler_feedback.journal.replay import about, replay, start_times
from scheduler_feedback.journal.store import Loaded, NumberedEntry, Store

_WAY_BACK = {"probe": "a probe", "probation": "probation", "recovered": ""}
"""Kinds of journal entries about a node's recovery, and the words for each kind in the summary."""


class Account:
    """Data from which the demo's report is computed, read after the cluster has been stopped.

    uninterrupted: result of the same training without gangwatch; None if it was not run. limits: limits of the checks.
    """

    def __init__(
        self,
        play: Play,
        steps: list[SeenStep],
        uninterrupted: dict[str, Any] | None,
        limits: Limits = LOCAL_LIMITS,
    ) -> None:
        self.play = play
        self.limits = limits
        self.steps = steps
        self.uninterrupted = uninterrupted
        store = Store(play.state_folder / "store.sqlite")
        try:
            self.journal: Loaded = store.journal_all()
            self.entries: list[NumberedEntry] = store.entries_after(0, limit=1_000_000)
        finally:
            store.close()
        self.events: list[tuple[int, Event]] = [
            (row.now_ns, event) for row in self.journal.journal for event in row.events
        ]
        self.starts: list[tuple[int, StartGang]] = [
            (row.now_ns, action)
            for row in self.journal.journal
            for action in row.actions
            if isinstance(action, StartGang)
        ]

    def truth(self) -> Truth | None:
        """Return the slowed rank and the begin and end of its disturbance; None if the demo slowed no rank."""
        target, lines = self.play.target, self.play.disturbance_lines
        if target is None:
            return None
        began = next(line["wall_ns"] for line in lines if line["act"] == "began")
        ended = next((line["wall_ns"] for line in lines if line["act"] == "ended"), began)
        return Truth(target["job"], target["rank"], target["node"], began, ended)

    def verdicts(self) -> list[dict[str, Any]]:
        """Return every verdict in the journal as a document, oldest first."""
        return [
            {
                "job": event.gang,
                "rank": event.rank,
                "node": event.node,
                "sentence": sentence(event),
                "kind": str(event.kind),
                "cause": str(event.cause),
                "confidence": event.confidence,
                "slowdown": event.slowdown,
                "evidence": [asdict(fact) for fact in event.evidence],
                "wall_ns": now_ns,
            }
            for now_ns, event in self.events
            if isinstance(event, Verdict)
        ]

    def migrations(self) -> list[dict[str, Any]]:
        """Return every applied decision to move a gang, with the costs and the gain that the controller compared."""
        return [
            {"job": entry.subject, "wall_ns": entry.wall_ns, "text": entry.text, "terms": dict(entry.detail)}
            for entry in (numbered.entry for numbered in self.entries)
            if entry.kind == "migrate" and entry.applied
        ]

    def started_ns(self, job_id: str) -> int | None:
        """Return the time in ns of the first decision to start the job; None if the job was never started."""
        return next((now for now, start in self.starts if start.job_id == job_id), None)

    def head_delay_seconds(self, head: str, backfilled: str) -> float | None:
        """Return by how many seconds the backfilled job delayed the head."""
        _, outcomes = replay(
            self.journal.state or State(),
            ((row.now_ns, row.events) for row in self.journal.journal),
            about(backfilled),
        )
        really, without = self.started_ns(head), start_times(outcomes).get((head, 1))
        return None if really is None or without is None else (really - without) / 1e9

    def training(self) -> dict[str, Any]:
        """Return the training's number of steps and of repeated steps, and the hash of its final weights.

        Also return whether these weights are those of the run without gangwatch.
        """
        gang = self.play.job_ids["training"]
        path = self.play.state_folder.parent / "training" / "result.json"
        result = json.loads(path.read_text()) if path.exists() else None
        matches = None
        if result is not None and self.uninterrupted is not None:
            matches = result["weights_sha256"] == self.uninterrupted["weights_sha256"]
        return {
            "steps": 0 if result is None else result["steps"],
            "steps_repeated": steps_repeated(self.steps, gang),
            "weights_match_uninterrupted": matches,
            "weights_sha256": None if result is None else result["weights_sha256"],
        }

    def report(self) -> dict[str, Any]:
        """Return the report of the demo. A value that was not observed is None."""
        play, truth = self.play, self.truth()
        gang = play.job_ids["training"]
        verdicts = self.verdicts()
        wrong = false_verdicts(verdicts, truth)
        moves = self.migrations()
        report: dict[str, Any] = {
            "seed": play.seed,
            "disturbed": None if truth is None else {"job": truth.gang, "rank": truth.rank, "node": truth.node},
            "verdicts": len(verdicts),
            "found": verdicts,
            "false_verdicts": len(wrong),
            "abstentions": [event.reason for _, event in self.events if isinstance(event, Abstention)],
            "migrations": len(moves),
            "moves": moves,
            "training": self.training(),
            "pace_seconds": play.pace_seconds,
        }
        if truth is None:
            counts = {"verdicts": len(verdicts), "migrations": len(moves)}
            broken = [f"there was no disturbance, but {count} {what}" for what, count in counts.items() if count]
            return report | {"passed": not broken, "failures": broken}

        found = next((verdict for verdict in verdicts if is_true(verdict, truth)), None) or next(iter(verdicts), None)
        again = next(
            (e.wall_ns for _, e in self.events if isinstance(e, FirstStep) and e.job_id == gang and e.attempt > 1), None
        )
        way = [
            numbered.entry
            for numbered in self.entries
            if numbered.entry.subject == f"node:{truth.node}" and numbered.entry.kind in _WAY_BACK
        ]
        back = next((entry.wall_ns for entry in way if entry.kind == "recovered"), None)
        by_way_of = [_WAY_BACK[kind] for kind in ("probe", "probation") if any(entry.kind == kind for entry in way)]
        during_until = found["wall_ns"] if found else truth.ended_ns
        report |= {
            "verdict": None if found is None else found | {"correct": is_true(found, truth)},
            "seconds_to_detect": None if found is None else (found["wall_ns"] - truth.began_ns) / 1e9,
            "seconds_to_running_again": None if found is None or again is None else (again - found["wall_ns"]) / 1e9,
            "step_seconds": {
                "before": typical(per_step(self.steps, gang, play.steady_from_ns, truth.began_ns)),
                "during": typical(per_step(self.steps, gang, truth.began_ns, during_until)),
                "after": typical(per_step(self.steps, gang, play.after_from_ns, play.after_until_ns)),
            },
            "backfilled": self._backfilled(),
            "reprobation_seconds": None if back is None else (back - truth.ended_ns) / 1e9,
            "trusted_by_way_of": by_way_of,
        }
        broken = failures(report, self.limits)
        return report | {"passed": not broken, "failures": broken}

    def _backfilled(self) -> dict[str, Any] | None:
        ids = self.play.job_ids
        if "short" not in ids or self.started_ns(ids["short"]) is None:
            return None
        return {"job": ids["short"], "head_delay_seconds": self.head_delay_seconds(ids["head"], ids["short"])}


def uninterrupted(play: Play) -> dict[str, Any]:
    """Run the training again without gangwatch and without interruption, with the same seed. Return its result."""
    folder = play.state_folder.parent / "uninterrupted"
    folder.mkdir(parents=True, exist_ok=True)
    return run_training(training_command(play.steps, play.seed, 0.0, folder), ranks=TRAINING_RANKS)
