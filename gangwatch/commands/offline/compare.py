"""The command `simulate compare`: several policies on one recorded trace of jobs."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from gangwatch.commands.offline.progress import counting, showing
from gangwatch.commands.options import print_json
from scheduler_feedback.core.state import Estimates
from scheduler_feedback.journal.garbage_collection import collecting_rarely
from scheduler_feedback.sim.simulated_feedback import FEEDBACKS
from scheduler_feedback.sim.traces import TRACES

if TYPE_CHECKING:
    from scheduler_feedback.core.state import Policy

# The simulation brings in numpy and rich, which `--help` and shell completion must not load: the functions that need
# them import them.


def _policy(name: str) -> Policy:
    """Return the policy of a gangwatch.toml, or with this name. Raises BadParameter, or ConfigError for a bad file."""
    from gangwatch.configuration.config_file import load
    from scheduler_feedback.sim.comparison import policy_of

    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise click.BadParameter(f"{name}: no such file", param_hint="POLICY")
        return load(Path(name)).policy
    try:
        return policy_of(name)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="POLICY") from None


@click.command()
@click.argument("names", metavar="POLICY...", nargs=-1, required=True)
@click.option(
    "--jobs",
    "jobs_file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Trace of jobs.",
)
@click.option(
    "--format",
    "format_name",
    required=True,
    type=click.Choice([one.name for one in TRACES]),
    help="Format of the trace.",
)
@click.option("--nodes", "nodes_text", required=True, metavar="NxG|FILE", help="N nodes of G GPUs, or a topology file.")
@click.option("--first", type=click.IntRange(min=1), metavar="N", help="Only the first N jobs of the trace.")
@click.option("--load", default=1.0, show_default=True, metavar="FACTOR", help="Jobs arrive FACTOR times as fast.")
@click.option(
    "--restart-cost",
    type=float,
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="Time that each restart loses.",
)
@click.option("--restartable", is_flag=True, help="Treat every job as restartable and preemptible.")
@click.option(
    "--estimates",
    type=click.Choice([one.value for one in Estimates]),
    help="Source of expected run times. Default: that of the policy's file; exact for a name.",
)
@click.option("--faults", metavar="PRESET|FILE", help="Nodes that become slow: a preset or a file.")
@click.option("--feedback", type=click.Choice(FEEDBACKS), default="off", show_default=True)
@click.option("--seed", default=0, show_default=True, help="Seed of the faults and of the detector's errors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
def compare(names: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Run several policies over one trace of jobs and print their figures in one table.

    A POLICY is ORDER[+BACKFILL][+preempt], such as fifo+easy or srtf+greedy+preempt, or a gangwatch.toml, whose queues,
    quotas and settings apply as in production.

    \b
    Example:
      gangwatch simulate compare --jobs philly.csv --format philly --nodes 64x8 fifo+easy srtf fair
      gangwatch simulate compare --jobs jobs.txt --format slurm --nodes 64x8 --restart-cost 300 --restartable \\
          today.toml fair+preempt --json
    """
    from scheduler_feedback.sim.comparison import compared
    from scheduler_feedback.sim.simulated_nodes import nodes_of
    from scheduler_feedback.sim.simulation import Simulation, read_trace

    _check(names, options)
    policies = {name: _estimating(_policy(name), name, options["estimates"]) for name in names}
    nodes = nodes_of(options["nodes_text"])
    with collecting_rarely(), showing(f"reading {options['jobs_file']}", as_json):
        trace = read_trace(options["jobs_file"], options["format_name"])
    jobs = trace.jobs[: options["first"]]
    if options["restartable"]:
        jobs = tuple(
            dataclasses.replace(job, spec=structs.replace(job.spec, restartable=True, preemptible=True)) for job in jobs
        )
    trace = dataclasses.replace(trace, jobs=jobs)
    found = []
    for number, (name, policy) in enumerate(policies.items(), 1):
        simulation = Simulation(
            trace=trace,
            nodes=nodes,
            policy=policy,
            load=options["load"],
            restart_cost_seconds=options["restart_cost"],
            faults=options["faults"],
            feedback=options["feedback"],
            seed=options["seed"],
        )
        with collecting_rarely(), counting(f"{name} ({number} of {len(policies)}): jobs ended", as_json) as progress:
            found.append(dataclasses.asdict(compared(name, simulation, progress)))
    refused = [{"job": one.job_id, "line": one.line, "reason": one.reason} for one in trace.refused]
    document = {"trace": trace.name, "notes": list(trace.notes), "refused": refused, "policies": found}
    if as_json:
        print_json(document)
    else:
        from gangwatch.display.comparison import show

        show(document)


def _check(names: tuple[str, ...], options: dict[str, Any]) -> None:
    """Raise BadParameter if a number is out of range or a policy is named twice."""
    if not (math.isfinite(options["load"]) and options["load"] > 0):
        raise click.BadParameter(f"{options['load']:g}: it must be more than 0", param_hint="--load")
    if not (math.isfinite(options["restart_cost"]) and options["restart_cost"] >= 0):
        raise click.BadParameter(f"{options['restart_cost']:g}: it cannot be less than 0", param_hint="--restart-cost")
    for name in names:
        if names.count(name) > 1:
            raise click.BadParameter(f"{name} is named twice", param_hint="POLICY")


def _estimating(policy: Policy, name: str, estimates: str | None) -> Policy:
    """Return the policy with the source of expected run times that the user chose, or its default."""
    if estimates is not None:
        return dataclasses.replace(policy, estimates=Estimates(estimates))
    return policy if name.endswith(".toml") else dataclasses.replace(policy, estimates=Estimates.EXACT)
