"""Options of `submit` that say what a gang is like, may become and waits for: each a field of the specification."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from gangwatch.commands.options import duration, plain
from scheduler_feedback.core.cluster import Level
from scheduler_feedback.core.job import After, Packing

_Command = Callable[..., Any]
_LEVELS = click.Choice([level.value for level in Level])
_CONDITIONS = "|".join(condition.value for condition in After)


def _array(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    found = re.fullmatch(r"(\d+)(?:%(\d+))?", value)
    if found is None or int(found[1]) < 1 or found[2] == "0":
        raise click.BadParameter(f"{value!r}: expected how many jobs, or JOBS%AT_ONCE (100, 100%8)")
    return int(found[1]), int(found[2] or 0)


def _arguments(_context: click.Context, _parameter: click.Parameter, value: str | None) -> list[str]:
    """The words of a command line, quoted as in a shell; no shell ever sees them."""
    try:
        return [] if value is None else shlex.split(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: {error}") from None


def _after(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> list[dict[str, str]]:
    found = []
    for value in values:
        job, _, condition = value.partition(":")
        if not job or condition not in {"", *After}:
            raise click.BadParameter(f"{value!r}: expected JOB or JOB:{_CONDITIONS}")
        found.append({"job_id": job, "condition": condition or After.OK.value})
    return found


def _groups(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for value in values:
        parts = re.fullmatch(r"([^=]+)=(\d+)(:same-node)?", value)
        if parts is None or int(parts[2]) < 1:
            raise click.BadParameter(f"{value!r}: expected ROLE=RANKS or ROLE=RANKS:same-node")
        found.append({"role": parts[1], "ranks": int(parts[2]), "same_node": parts[3] is not None})
    return found


def _speeds(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for value in values:
        gpu_type, _, speed = value.partition("=")
        try:
            found[gpu_type] = float(speed)
        except ValueError:
            raise click.BadParameter(f"{value!r}: expected TYPE=SPEED (A100=1, V100=0.6)") from None
    return found


def _job_file(_context: click.Context, _parameter: click.Parameter, value: Path | None) -> dict[str, Any]:
    if value is None:
        return {}
    try:
        return msgspec.json.decode(value.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{value}: {error}") from None


_OPTIONS = (
    click.option("--min-ranks", type=click.IntRange(1), help="Elastic: runs with as few; RANKS is what it asks for."),
    click.option("--max-ranks", type=click.IntRange(1), help="Elastic: gets as many while nobody waits."),
    click.option(
        "--array", callback=_array, metavar="N[%M]", help="So many jobs of this kind, each its own gang; M at once."
    ),
    click.option(
        "--group",
        "groups",
        multiple=True,
        callback=_groups,
        metavar="ROLE=RANKS[:same-node]",
        help="Ranks of one role, in the order of ranks; may be repeated. Their commands: --job-file.",
    ),
    click.option(
        "--after",
        multiple=True,
        callback=_after,
        metavar=f"JOB[:{_CONDITIONS}]",
        help="Starts only once that job (or array) is so. Default: ok.",
    ),
    click.option("--gpu-type", "gpu_types", multiple=True, metavar="TYPE", help="Runs on this type; may be repeated."),
    click.option(
        "--throughput",
        multiple=True,
        callback=_speeds,
        metavar="TYPE=SPEED",
        help="Speed on a type, as a share of that on the type its time limit is for; may be repeated.",
    ),
    click.option(
        "--checkpoint-interval",
        "checkpoint_interval_seconds",
        callback=duration,
        metavar="DURATION",
        help="It saves on its own so often, and loses what came since.",
    ),
    click.option(
        "--checkpoint-cost",
        "checkpoint_cost_seconds",
        callback=duration,
        metavar="DURATION",
        help="What a save takes.",
    ),
    click.option(
        "--checkpoint-command",
        "checkpoint_command",
        callback=_arguments,
        metavar="COMMAND",
        help="Run beside rank 0, without a shell, before the job is moved; implies --restartable.",
    ),
    click.option(
        "--checkpoint-timeout",
        "checkpoint_timeout_seconds",
        callback=duration,
        metavar="DURATION",
        help="The longest that is waited for it. Default: 60s.",
    ),
    click.option("--priority", type=int, help="Higher first, before anything else is looked at."),
    click.option("--preemptible", is_flag=True, help="May be stopped for others; implies --restartable."),
    click.option(
        "--min-run",
        "min_run_seconds",
        callback=duration,
        metavar="DURATION",
        help="Not stopped for others, nor resized, before it has run so long.",
    ),
    click.option("--spread", is_flag=True, help="Over as many nodes as can be. Default: packed together."),
    click.option("--level", "required_level", type=_LEVELS, help="All ranks inside one domain of this level, or wait."),
    click.option("--prefer-level", "preferred_level", type=_LEVELS, help="The same, as far as it can be had."),
    click.option(
        "--workload", callback=plain, help="What it trains, in a word: jobs alike are expected to run alike long."
    ),
    click.option(
        "--job-file",
        callback=_job_file,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="A JSON object of the specification's fields; what is given here goes before it.",
    ),
)


def shape_options(command: _Command) -> _Command:
    """All of them, given to the command as one dict, `shape`, of those fields that were given."""

    @functools.wraps(command)
    def gathered(
        *, job_file: dict[str, Any], array: tuple[int, int] | None, spread: bool, preemptible: bool, **rest: Any
    ) -> Any:
        names = (
            "min_ranks", "max_ranks", "groups", "after", "gpu_types", "throughput", "checkpoint_interval_seconds",
            "checkpoint_cost_seconds", "checkpoint_command", "checkpoint_timeout_seconds", "priority",
            "min_run_seconds", "required_level", "preferred_level", "workload",
        )  # fmt: skip
        given = {name: value for name in names if (value := rest.pop(name)) or value == 0}
        if array is not None:
            given |= {"array_size": array[0], "array_parallel": array[1]}
        if spread:
            given["packing"] = Packing.SPREAD.value
        if preemptible:
            given |= {"preemptible": True, "restartable": True}
        return command(shape=job_file | given, **rest)

    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered
