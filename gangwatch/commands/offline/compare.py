"""The command `simulate compare`: several policies on one recorded trace of jobs."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from gangwatch.commands.offline.progress import counting, showing
from gangwatch.commands.offline.trace_options import (
    check_interval,
    check_load,
    check_power,
    check_seconds,
    check_writable,
    configured,
    dataset_loads,
    dataset_option,
    fault_options,
    gpu_model,
    load_option,
    mig_option,
    power_options,
    real_speeds,
    restart_cost_option,
    shared_slots,
    sharing_options,
    speeds_option,
    trace_options,
)
from gangwatch.commands.options import print_json, say
from scheduler_feedback.core.state import Estimates
from scheduler_feedback.journal.garbage_collection import collecting_rarely

if TYPE_CHECKING:
    from scheduler_feedback.core.state import Policy

# The simulation brings in numpy and rich, which `--help` and shell completion must not load: the functions that need
# them import them.


def _policy(name: str) -> tuple[Policy, int]:
    """Return the policy of a gangwatch.toml or with this name, and the file's number of jobs on a slot (1 without one).

    Raises BadParameter, or ConfigError for a bad file.
    """
    from scheduler_feedback.sim.comparison import policy_of

    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise click.BadParameter(f"{name}: no such file", param_hint="POLICY")
        return configured(Path(name))
    try:
        return policy_of(name), 1
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="POLICY") from None


@click.command()
@click.argument("names", metavar="POLICY...", nargs=-1, required=True)
@trace_options(required=True)
@click.option("--first", type=click.IntRange(min=1), metavar="N", help="Only the first N jobs of the trace.")
@load_option
@restart_cost_option
@speeds_option
@click.option("--restartable", is_flag=True, help="Treat every job as restartable and preemptible.")
@click.option(
    "--estimates",
    type=click.Choice([one.value for one in Estimates]),
    help="Source of expected run times. Default: that of the policy's file; exact for a name.",
)
@sharing_options
@mig_option
@fault_options
@dataset_option
@power_options
@click.option(
    "--gpu-watts",
    type=(click.FloatRange(min=0), click.FloatRange(min=0)),
    metavar="IDLE BUSY",
    help="Power of a GPU without and with a job, for the energy of each policy.",
)
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with the figures and charts."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
def compare(names: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Run several policies over one trace of jobs and print their figures in one table.

    A POLICY is ORDER[+BACKFILL][+SIZES][+SHARING][+preempt], such as fifo+easy, srtf+goodput, fifo+gandiva or
    srtf+greedy+preempt, or a gangwatch.toml, whose queues, quotas and settings apply as in production. SIZES chooses
    the sizes of elastic gangs, SHARING which jobs share slots.

    \b
    Example:
      gangwatch simulate compare --jobs philly.csv --format philly --nodes 64x8 fifo+easy srtf fair --html page.html
      gangwatch simulate compare --jobs jobs.txt --format slurm --nodes 64x8 --restart-cost 300 --restartable \\
          today.toml fair+preempt --json
    """
    from scheduler_feedback.sim.comparison import GpuPower, compared
    from scheduler_feedback.sim.simulated_nodes import divisible, nodes_of
    from scheduler_feedback.sim.simulation import Simulation, read_trace

    _check(names, options)
    given = {name: _policy(name) for name in names}
    policies = {name: _estimating(policy, name, options["estimates"]) for name, (policy, _) in given.items()}
    sharing = shared_slots(
        options["jobs_per_slot"],
        options["shareable"],
        options["opportunistic"],
        options["pair_speeds_file"],
        options["seed"],
    )
    nodes = nodes_of(options["nodes_text"])
    if options["mig_model"] is not None:
        nodes = divisible(nodes, options["mig_model"])
        policies = {name: dataclasses.replace(policy, mig=True) for name, policy in policies.items()}
    speeds = real_speeds(options["speeds_file"])
    model = gpu_model(options["gpu_power"], options["curves_file"])
    for policy in policies.values():
        check_power(policy, model)
    power = None if options["gpu_watts"] is None else GpuPower(*options["gpu_watts"])
    with collecting_rarely(), showing(f"reading {options['jobs_file']}", as_json):
        trace = read_trace(options["jobs_file"], options["format_name"])
    jobs = trace.jobs[: options["first"]]
    if options["restartable"]:
        jobs = tuple(
            dataclasses.replace(job, spec=structs.replace(job.spec, restartable=True, preemptible=True)) for job in jobs
        )
    trace = dataclasses.replace(trace, jobs=jobs)
    found, curves = [], []
    notes = dict.fromkeys(trace.notes)
    for number, (name, policy) in enumerate(policies.items(), 1):
        here = sharing.of_file(given[name][1])
        shared = here.trace(trace, policy.sharing)
        notes |= dict.fromkeys(shared.notes)
        simulation = Simulation(
            trace=shared,
            nodes=here.nodes(nodes, policy.sharing),
            co_speed=here.co_speed(policy.sharing, nodes),
            policy=policy,
            load=options["load"],
            restart_cost_seconds=options["restart_cost"],
            faults=options["faults"],
            retries=options["retries"],
            checkpoint_seconds=options["checkpoint_interval"],
            feedback=options["feedback"],
            seed=options["seed"],
            speeds=speeds,
            power=model,
            datasets=dataset_loads(options["dataset_cache"]),
            spans=options["html"] is not None,
        )
        with collecting_rarely(), counting(f"{name} ({number} of {len(policies)}): jobs ended", as_json) as progress:
            one, drawn = compared(name, simulation, progress, power)
        found.append(dataclasses.asdict(one))
        curves.append(drawn)
    refused = [{"job": one.job_id, "line": one.line, "reason": one.reason} for one in trace.refused]
    document = {"trace": trace.name, "notes": list(notes), "refused": refused, "policies": found}
    if options["html"] is not None:
        from scheduler_feedback.sim.comparison_page import write_comparison

        write_comparison(options["html"], document, curves, sum(node.slots for node in nodes))
        say(f"page: {options['html']}")
    if as_json:
        print_json(document)
    else:
        from gangwatch.display.comparison import show

        show(document)


def _check(names: tuple[str, ...], options: dict[str, Any]) -> None:
    """Raise BadParameter if a number is out of range or a policy is named twice."""
    check_load(options["load"])
    check_seconds("--restart-cost", options["restart_cost"])
    check_interval("--checkpoint-interval", options["checkpoint_interval"])
    check_writable("--html", options["html"])
    if options["gpu_watts"] is not None and not all(math.isfinite(watts) for watts in options["gpu_watts"]):
        raise click.BadParameter("must be two numbers of watts", param_hint="--gpu-watts")
    for name in names:
        if names.count(name) > 1:
            raise click.BadParameter(f"{name} is named twice", param_hint="POLICY")


def _estimating(policy: Policy, name: str, estimates: str | None) -> Policy:
    """Return the policy with the source of expected run times that the user chose, or its default."""
    if estimates is not None:
        return dataclasses.replace(policy, estimates=Estimates(estimates))
    return policy if name.endswith(".toml") else dataclasses.replace(policy, estimates=Estimates.EXACT)
