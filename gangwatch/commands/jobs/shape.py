"""Options of `submit` for the shape, elasticity and dependencies of a gang. Each option sets a field of the job."""

from __future__ import annotations

import functools
import math
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
        raise click.BadParameter(f"{value!r}: expected JOBS or JOBS%AT_ONCE (100, 100%8)")
    return int(found[1]), int(found[2] or 0)


def _arguments(_context: click.Context, _parameter: click.Parameter, value: str | None) -> list[str]:
    """Split a command line into arguments by the quoting rules of a shell (click callback)."""
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


def _sizes(_context: click.Context, _parameter: click.Parameter, value: str | None) -> list[int]:
    parts = [] if value is None else value.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"{value!r}: expected numbers of ranks, such as 2,4,8")
    return sorted({int(part) for part in parts})


def _speeds(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for value in values:
        gpu_type, _, speed = value.partition("=")
        try:
            found[gpu_type] = float(speed)
        except ValueError:
            raise click.BadParameter(f"{value!r}: expected TYPE=SPEED (A100=1, V100=0.6)") from None
    return found


class FiniteRange(click.FloatRange):
    """Range of numbers without nan and infinity, which a JSON document cannot contain."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Raises click.BadParameter."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return found


def _stages(_context: click.Context, _parameter: click.Parameter, value: str | None) -> list[float]:
    """Return the seconds of each stage (click callback)."""
    if value is None:
        return []
    try:
        found = [float(part) for part in value.split(",")]
    except ValueError:
        found = []
    if not any(found) or not all(math.isfinite(one) and one >= 0 for one in found):
        raise click.BadParameter(f"{value!r}: expected seconds of 0 or more, not all 0, such as 0.2,0.5,1.5,0.1")
    return found


def _job_file(_context: click.Context, _parameter: click.Parameter, value: Path | None) -> dict[str, Any]:
    if value is None:
        return {}
    try:
        return msgspec.json.decode(value.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{value}: {error}") from None


_OPTIONS = (
    click.option("--min-ranks", type=click.IntRange(1), help="Elastic: fewest ranks; RANKS is the request."),
    click.option("--max-ranks", type=click.IntRange(1), help="Elastic: most ranks, while no job is pending."),
    click.option(
        "--sizes",
        callback=_sizes,
        metavar="RANKS,...",
        help="Elastic: the only numbers of ranks for which the job has a layout. Sets the fewest and most ranks.",
    ),
    click.option(
        "--reshard-cost",
        "reshard_seconds",
        callback=duration,
        metavar="DURATION",
        help="Time that a restart with another number of ranks takes longer than one with the same.",
    ),
    click.option("--array", callback=_array, metavar="N[%M]", help="N jobs, each a separate gang; at most M at once."),
    click.option(
        "--group",
        "groups",
        multiple=True,
        callback=_groups,
        metavar="ROLE=RANKS[:same-node]",
        help="Ranks of one role, in rank order; repeatable. Commands per role: --job-file.",
    ),
    click.option(
        "--after",
        multiple=True,
        callback=_after,
        metavar=f"JOB[:{_CONDITIONS}]",
        help="Start only when that job or array meets the condition. Default: ok.",
    ),
    click.option("--gpu-type", "gpu_types", multiple=True, metavar="TYPE", help="GPU type to run on; repeatable."),
    click.option(
        "--throughput",
        multiple=True,
        callback=_speeds,
        metavar="TYPE=SPEED",
        help="Speed on a GPU type, relative to the type that the time limit assumes; repeatable.",
    ),
    click.option(
        "--checkpoint-interval",
        "checkpoint_interval_seconds",
        callback=duration,
        metavar="DURATION",
        help="Interval of the job's own checkpoints. A stop loses the work since the last one.",
    ),
    click.option(
        "--checkpoint-cost",
        "checkpoint_cost_seconds",
        callback=duration,
        metavar="DURATION",
        help="Time that one checkpoint takes.",
    ),
    click.option(
        "--checkpoint-command",
        "checkpoint_command",
        callback=_arguments,
        metavar="COMMAND",
        help="Command to run on rank 0's node, without a shell, before a move; implies --restartable.",
    ),
    click.option(
        "--checkpoint-timeout",
        "checkpoint_timeout_seconds",
        callback=duration,
        metavar="DURATION",
        help="Longest wait for the checkpoint command. Default: 60s.",
    ),
    click.option("--priority", type=int, help="Higher first; precedes every other order."),
    click.option("--preemptible", is_flag=True, help="The job may be preempted; implies --restartable."),
    click.option(
        "--min-run",
        "min_run_seconds",
        callback=duration,
        metavar="DURATION",
        help="Do not preempt or resize the job before it has run this long.",
    ),
    click.option("--spread", is_flag=True, help="Use as many nodes as possible. Default: as few as possible."),
    click.option("--level", "required_level", type=_LEVELS, help="Require all ranks in one domain of this level."),
    click.option("--prefer-level", "preferred_level", type=_LEVELS, help="Prefer one domain of this level."),
    click.option("--shareable", is_flag=True, help="Other shareable jobs may use this job's slots at the same time."),
    click.option(
        "--opportunistic",
        is_flag=True,
        help="Use only what other jobs leave of their slots; implies --shareable and --preemptible.",
    ),
    click.option(
        "--slot-memory",
        "slot_memory_mib",
        type=click.IntRange(1),
        metavar="MIB",
        help="Device memory of each rank. Jobs share a slot only if the memory of all fits.",
    ),
    click.option(
        "--slot-share",
        type=FiniteRange(0, 1, min_open=True),
        metavar="PART",
        help="Part of a slot's computing power that each rank needs, such as 0.5.",
    ),
    click.option(
        "--mig",
        "mig_profile",
        callback=plain,
        metavar="PROFILE",
        help="Run each rank in a MIG instance of its own, such as 2g.20gb, instead of a whole GPU.",
    ),
    click.option(
        "--latency-objective",
        "latency_objective_seconds",
        type=FiniteRange(0, min_open=True),
        metavar="SECONDS",
        help="The job serves requests (its steps), 95 % of them within this time. With --shareable, it lends its slots "
        "to opportunistic jobs while it is much faster (for the rule muxflow).",
    ),
    click.option(
        "--stages",
        callback=_stages,
        metavar="SECONDS,...",
        help="Seconds of one step on each resource in turn, such as storage, CPU, GPU, network (for the rule muri).",
    ),
    click.option(
        "--workload",
        callback=plain,
        help="Name of the workload; run times are predicted from jobs of the same workload.",
    ),
    click.option(
        "--dataset",
        callback=plain,
        metavar="NAME",
        help="Data that every node of the job reads; nodes that have it in their cache are preferred.",
    ),
    click.option(
        "--dataset-gib",
        type=FiniteRange(0, min_open=True),
        metavar="GIB",
        help="Size of that data on one node.",
    ),
    click.option(
        "--job-file",
        callback=_job_file,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="JSON object with fields of the specification; command-line options override it.",
    ),
)


def shape_options(command: _Command) -> _Command:
    """Add all options of this module to a command. The command receives the given values as one dict, `shape`."""

    @functools.wraps(command)
    def gathered(
        *, job_file: dict[str, Any], array: tuple[int, int] | None, spread: bool, preemptible: bool, **rest: Any
    ) -> Any:
        shareable, opportunistic = rest.pop("shareable"), rest.pop("opportunistic")
        names = (
            "min_ranks", "max_ranks", "groups", "after", "gpu_types", "throughput", "checkpoint_interval_seconds",
            "checkpoint_cost_seconds", "checkpoint_command", "checkpoint_timeout_seconds", "priority",
            "min_run_seconds", "required_level", "preferred_level", "workload",
            "slot_memory_mib", "slot_share", "stages", "latency_objective_seconds", "sizes", "reshard_seconds",
            "dataset", "dataset_gib", "mig_profile",
        )  # fmt: skip
        given = {name: value for name in names if (value := rest.pop(name)) or value == 0}
        if sizes := given.get("sizes"):
            given = {"min_ranks": sizes[0], "max_ranks": sizes[-1]} | given
        if array is not None:
            given |= {"array_size": array[0], "array_parallel": array[1]}
        if spread:
            given["packing"] = Packing.SPREAD.value
        if shareable or opportunistic:
            given["shareable"] = True
        if opportunistic:
            given["opportunistic"] = preemptible = True
        if preemptible:
            given |= {"preemptible": True, "restartable": True}
        return command(shape=job_file | given, **rest)

    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered
