"""Page of `gangwatch detect --html`: verdicts in sentences and a heat map, in one self-contained file."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agent.schema.verdicts.kinds import Accused, row_of
from gangwatch.display.heat_map import amount, ratios, reduced, sentence
from scheduler_feedback.step_traces.judging import JobReport

Document = dict[str, Any]

ROWS, COLUMNS = 256, 1600
"""Maximum number of rows (ranks) and columns (steps) of a heat map."""

_TEMPLATE = Path(__file__).with_name("heat_map_page.html")


def page(reports: Sequence[JobReport], documents: Sequence[Document], title: str) -> str:
    """Return a self-contained HTML page. documents: one per job, made by ``document`` of commands/offline/detect.py."""
    sections = [_section(number, *pair) for number, pair in enumerate(zip(reports, documents, strict=True))]
    text = _TEMPLATE.read_text(encoding="utf-8").replace("{title}", html.escape(title))
    return text.replace("{sections}", "\n".join(sections))


def _section(number: int, report: JobReport, document: Document) -> str:
    verdicts = document["verdicts"]
    cards = "".join(_card(verdict) for verdict in verdicts)
    none = "<p>No verdict: no detector found a slow rank.</p>"
    notes = "".join(f"<p class=hint>{html.escape(note)}</p>" for note in document["notes"])
    picture = _picture(number, report, verdicts) if len(report.number) else "<p>The recording has no steps.</p>"
    return (
        f"<section><h2>{html.escape(report.name)}</h2><p>{html.escape(_summary(document, report.worker))}</p>{notes}"
        f"<h3>Verdicts</h3>{cards or none}{picture}</section>"
    )


def _summary(document: Document, worker: bool) -> str:
    """Return sentences about the recording: number of steps and ranks, and the time that the job lost.

    worker: whether to write 'worker' instead of 'rank'.
    """
    job = document["job"]
    who = "worker" if worker else "rank"
    sentences = [f"{_count(job['steps'], 'step')} of {_count(job['ranks'], who)}."]
    if job["step_seconds"] is not None:
        sentences.append(f"A step took {amount(job['step_seconds'], 'seconds')} on average.")
    if job["slowdown"] is not None:
        sentences.append(f"That is {job['slowdown']:.3g} times what it would take if all peers needed equal time.")
    if job["without_suspects_seconds"] is not None and document["verdicts"]:
        without = amount(job["without_suspects_seconds"], "seconds")
        sentences.append(f"With the suspects as fast as their peers it would take {without}.")
    return " ".join(sentences)


def _count(number: int, one: str) -> str:
    return f"{number:,} {one}{'' if number == 1 else 's'}"


def _card(verdict: Document) -> str:
    first, last, known = verdict["first_step"], verdict["last_step"], verdict["detected_step"]
    sentences = [f"From step {first:,} to step {last:,}." if first is not None and last is not None else ""]
    sentences.append(f"Reported at step {known:,}." if known is not None else "")
    row = row_of(verdict["kind"])
    if row.accused is not Accused.NOTHING:
        sentences.append(f"Confidence {100 * verdict['confidence']:.0f} %.")
    evidence = "".join(f"<li>{html.escape(_evidence(item))}.</li>" for item in verdict["evidence"])
    return (
        f"<article class={row.tone}>"
        f"<h4>{html.escape(_capital(verdict['sentence']))}.</h4><p>{html.escape(' '.join(filter(None, sentences)))}</p>"
        f"<details open><summary>Evidence</summary><ul>{evidence}</ul></details></article>"
    )


def _evidence(item: Document) -> str:
    text = sentence(item)
    return text[:1].upper() + text[1:]


def _capital(text: str) -> str:
    """Capitalise a text that begins with "rank" or "worker"; do not change one that begins with a job's name."""
    return text[:1].upper() + text[1:] if text.startswith(("rank", "worker")) else text


def _picture(number: int, report: JobReport, verdicts: Sequence[Document]) -> str:
    place = {int(rank): index for index, rank in enumerate(report.shape.ranks.tolist())}
    accused = {place[rank] for verdict in verdicts for rank in _accused(verdict) if rank in place}
    cells, ranks, steps = reduced(ratios(report), ROWS, COLUMNS, accused)
    row_of = {rank: row for row, rank in enumerate(ranks)}
    word = "worker" if report.worker else "rank"
    numbers = [int(report.number[step]) for step in steps]
    data = {
        "rows": len(ranks),
        "columns": len(steps),
        "cells": base64.b64encode(_quantized(cells).tobytes()).decode(),
        "names": [_name(report, rank, word) for rank in ranks],
        "accused": sorted(row_of[rank] for rank in accused),
        "steps": numbers,
        "last": int(report.number[-1]),
        "boxes": list(_boxes(verdicts, place, row_of, numbers)),
    }
    worst = ", ".join(f"{word} {report.shape.ranks[rank]}" for rank in sorted(accused)) or f"no {word}"
    label = f"Own time of each {word} and step, relative to its peers. The verdicts name {worst}."
    left_out = len(report.shape) - len(ranks)
    hints = [
        f"Each row is a {word}, each column {'a step' if len(steps) == len(report.number) else 'some steps'}: the"
        f" {word}'s own time divided by the median of its peers. A frame marks a verdict.",
        f"The {word}s with the longest times are drawn; {left_out:,} others are not." if left_out else "",
        "If several steps share a column, the slowest is drawn." if len(steps) < len(report.number) else "",
    ]
    return (
        f"<h3>Every {word}, step by step</h3><p class=hint>{html.escape(' '.join(filter(None, hints)))}</p>"
        f'<figure id="map{number}"><div class=names aria-hidden=true></div><div class=ground>'
        f'<canvas role="img" tabindex=0 aria-label="{html.escape(label)}"></canvas></div>'
        '<div class=steps aria-hidden=true></div><ul class=legend></ul><figcaption aria-live="polite">&nbsp;'
        f"</figcaption></figure><script>draw({number}, {_script(data)});</script>"
    )


def _quantized(cells: Any) -> Any:
    """Return the values of the heat map as uint8, in hundredths: 0 if unknown, 255 for 2.55 and more."""
    return np.clip(np.rint(np.nan_to_num(cells) * 100), 0, 255).astype(np.uint8)


def _name(report: JobReport, rank: int, word: str) -> str:
    node, number = report.shape.nodes[rank], report.shape.ranks[rank]
    named = node not in ("", f"rank-{number}", f"worker-{number}")  # not a name that the readers made up
    return f"{word} {number}" + (f" · {node}" if named else "")


def _accused(verdict: Document) -> list[int]:
    return list(verdict["ranks"]) or ([] if verdict["rank"] is None else [verdict["rank"]])


def _boxes(
    verdicts: Iterable[Document], place: dict[int, int], row_of: dict[int, int], numbers: Sequence[int]
) -> Iterable[list[int]]:
    """Yield the box that marks each rank of a verdict in the map: [first column, column after the last, row]."""
    for verdict in verdicts:
        if verdict["first_step"] is None or verdict["last_step"] is None:
            continue
        first = max(int(np.searchsorted(numbers, verdict["first_step"], side="right")) - 1, 0)
        behind = max(int(np.searchsorted(numbers, verdict["last_step"], side="right")), first + 1)
        yield from ([first, behind, row_of[place[rank]]] for rank in _accused(verdict) if rank in place)


def _script(data: Document) -> str:
    """Return JSON that is safe inside a script element; a name may contain '</script>'."""
    return json.dumps(data).replace("<", "\\u003c")
