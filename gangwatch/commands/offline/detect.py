"""The command `gangwatch detect`: finds slow ranks in recorded steps, without a daemon."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent.schema.errors import TraceError
from agent.schema.verdicts.kinds import Accused, row_of
from gangwatch.commands.options import json_option, print_json
from scheduler_feedback import step_traces
from scheduler_feedback.core.verdict import Evidence, Verdict
from scheduler_feedback.core.verdict_text import sentence

if TYPE_CHECKING:
    from scheduler_feedback.step_traces.judging import JobReport

# The detectors and the heat maps bring in numpy, which `--help` and shell completion must not load: the functions that
# need them import them.


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "format_name",
    type=click.Choice(tuple(step_traces.FORMATS)),
    help="Format of the files. Default: detected per file.",
)
@click.option(
    "--html",
    "html_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="OUT",
    help="Write verdicts and heat maps as one self-contained page.",
)
@json_option
def detect(files: tuple[Path, ...], format_name: str | None, html_file: Path | None, as_json: bool) -> None:
    """Find the ranks that slowed down recorded jobs, and why: straggler, imbalance, workload or unknown.

    Each FILE is read as a stream: a verdict uses no data later than its detection step. Formats: ByteDance's step
    traces (Parquet), Alibaba PAI's mini-batch times (CSV), JSON lines, and recorded frames.

    \b
    Example:
      gangwatch detect steps.jsonl --html steps.html
      gangwatch detect steps.parquet --json
    """
    reports = []
    documents = []
    for path in files:
        for report in _judged(path, format_name):
            reports.append(report)
            documents.append(document(report, path))
    if not reports:
        raise TraceError(f"{files[0]}: the file contains no job")
    if html_file is not None:
        from gangwatch.display import heat_map_page

        title = "gangwatch detect: " + ", ".join(path.name for path in files)
        try:
            html_file.write_text(heat_map_page.page(reports, documents, title), encoding="utf-8")
        except OSError as error:
            raise click.FileError(str(html_file), error.strerror) from None
        click.echo(f"wrote {html_file}", err=True)
    if as_json:
        print_json(documents[0] if len(documents) == 1 else {"recordings": documents})
        return
    for report, found in zip(reports, documents, strict=True):
        _show(report, found)


def _judged(path: Path, format_name: str | None) -> list[JobReport]:
    """Read a file and run the detectors over it, with progress bars if standard error is a terminal."""
    from rich.console import Console

    from scheduler_feedback.step_traces.judging import judge

    console = Console(stderr=True)
    if not console.is_terminal:  # older releases of rich end even a disabled bar with a blank line
        return judge(step_traces.read(path, format_name))
    from rich.progress import Progress

    with Progress(console=console, transient=True) as bars:
        size = path.stat().st_size if path.is_file() else 0
        reading = bars.add_task(f"read {path.name}", total=size or None)
        recording = step_traces.read(path, format_name, lambda count: bars.advance(reading, count))
        bars.update(reading, completed=size)
        steps = sum(len(trace.steps) for trace in recording.traces)
        detecting = bars.add_task("detect", total=steps or None)
        return judge(recording, progress=lambda: bars.advance(detecting))


def document(report: JobReport, path: Path) -> dict[str, Any]:
    """Return the result for one job as the document that --json prints."""

    verdicts: list[Verdict] = [*report.verdicts, *report.unknown]
    verdicts.sort(key=lambda verdict: verdict.detected_step)
    return {
        "file": str(path),
        "name": report.name,
        "verdicts": [_verdict(report, verdict) for verdict in verdicts],
        "job": {
            "slowdown": _number(report.slowdown),
            "step_seconds": _number(report.step_seconds),
            "without_suspects_seconds": _number(report.without_suspects_seconds),
            "steps": len(report.number),
            "ranks": len(report.shape),
        },
        "notes": list(report.notes),
    }


def _verdict(report: JobReport, verdict: Verdict) -> dict[str, Any]:
    place = {int(rank): index for index, rank in enumerate(report.shape.ranks.tolist())}
    about = [place[rank] for rank in verdict.ranks or (verdict.rank,) if rank in place]

    def coordinate(name: str) -> int | None:
        values = {int(report.shape.coordinate(name)[index]) for index in about} - {-1}
        return values.pop() if len(values) == 1 else None

    rank = None if verdict.rank < 0 else verdict.rank
    # In a recording without nodes, the readers derive a node name from each rank.
    unnamed = verdict.node in (f"rank-{verdict.rank}", f"worker-{verdict.rank}")
    words = sentence(replace(verdict, node="") if unnamed else verdict)
    return {
        "sentence": re.sub(r"\brank(?=s? \d)", "worker", words) if report.worker else words,
        "kind": verdict.kind.value,
        "rank": rank,
        "ranks": list(verdict.ranks),
        "dp_rank": coordinate("data"),
        "stage": coordinate("stage"),
        "worker": rank if report.worker else None,
        "node": verdict.node or None,
        "device": verdict.device or None,
        "aggressor": verdict.aggressor or None,
        "first_step": _step(verdict.first_step),
        "last_step": _step(verdict.last_step),
        "detected_step": _step(verdict.detected_step),
        "slowdown": _number(verdict.slowdown),
        "confidence": _number(verdict.confidence),
        "cause": verdict.cause.value,
        "evidence": [_evidence(item) for item in verdict.evidence],
        "latest": _latest(report.latest.get(verdict.verdict_id, verdict)),
    }


def _latest(verdict: Verdict) -> dict[str, Any]:
    """Return the values of a verdict's newest version. They may depend on steps after its detected_step."""
    return {
        "rank": None if verdict.rank < 0 else verdict.rank,
        "ranks": list(verdict.ranks),
        "cause": verdict.cause.value,
        "confidence": _number(verdict.confidence),
        "slowdown": _number(verdict.slowdown),
    }


def _evidence(item: Evidence) -> dict[str, Any]:
    return {
        "measure": item.measure,
        "value": _number(item.value),
        "reference": _number(item.reference),
        "unit": item.unit,
        "against": item.against,
        "log_likelihood_ratio": _number(item.log_likelihood_ratio),
    }


def _number(value: float) -> float | None:
    """Return the value, or None if it is infinite or NaN, because JSON can't represent such values."""
    return value if math.isfinite(value) else None


def _step(value: int) -> int | None:
    return None if value < 0 else value


def _show(report: JobReport, found: dict[str, Any]) -> None:
    from gangwatch.display import heat_map

    job = found["job"]
    click.secho(f"{found['name']}: {job['steps']} steps of {job['ranks']} ranks", bold=True)
    for note in found["notes"]:
        click.echo(f"  note: {note}")
    if job["step_seconds"] is not None:
        without, slowdown = job["without_suspects_seconds"], job["slowdown"]
        words = f"  mean step {job['step_seconds']:.4g} s"
        words += "" if slowdown is None else f", {slowdown:.3g} times the step time with equal peers"
        words += "" if without is None else f"; {without:.4g} s without the suspects"
        click.echo(words)
    for line in heat_map.terminal(report):
        click.echo("  " + "".join(text if colour is None else click.style(text, fg=colour) for text, colour in line))
    if not found["verdicts"]:
        click.echo("  no verdict: no detector found a slow rank")
    word = "worker" if report.worker else "rank"
    for verdict in found["verdicts"]:
        who = "the job" if verdict["rank"] is None else f"{word} {verdict['rank']}"
        if verdict["rank"] is None and verdict["stage"] is not None:
            who = f"stage {verdict['stage']}"
        kind = verdict["kind"].replace("_", " ")
        click.echo(f"  step {_word(verdict['detected_step'])}: ", nl=False)
        click.secho(kind, bold=True, nl=False)
        sure = "" if row_of(verdict["kind"]).accused is Accused.NOTHING else f", confidence {verdict['confidence']:.2f}"
        when = f"steps {_word(verdict['first_step'])} to {_word(verdict['last_step'])}"
        click.echo(f": {who}, cause {verdict['cause']}, {when}, costs {verdict['slowdown']:.3g} times{sure}")
        latest = verdict["latest"]
        if sure and any(latest[key] != verdict[key] for key in ("ranks", "cause", "confidence")):
            of = f" for {word}s {', '.join(map(str, latest['ranks']))}" if latest["ranks"] else ""
            click.echo(f"      at the end: cause {latest['cause']}, confidence {latest['confidence']:.2f}{of}")
        for item in verdict["evidence"]:
            click.echo(f"      {heat_map.sentence(item)}")


def _word(step: int | None) -> str:
    return "?" if step is None else str(step)
