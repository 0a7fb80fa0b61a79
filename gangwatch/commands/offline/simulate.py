"""The command `simulate`: runs the scheduler on a recorded trace of jobs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from gangwatch.commands.offline.compare import compare
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
from scheduler_feedback.core.state import FAIR_POLICY, Backfilling, Estimates, Order, Policy, Sharing
from scheduler_feedback.journal.garbage_collection import collecting_rarely
from scheduler_feedback.sim.job_trace import Trace
from scheduler_feedback.sim.presets import PRESETS

if TYPE_CHECKING:
    from scheduler_feedback.sim.engine import Engine
    from scheduler_feedback.sim.results import Report
    from scheduler_feedback.sim.speeds.shared_slots import SharedSlots

# The simulation brings in numpy, SQLite and rich, which `--help` and shell completion must not load: the functions that
# need them import them.


@dataclass(frozen=True, slots=True)
class Options:
    """The command-line options of `simulate`."""

    jobs_file: Path
    format_name: str
    nodes_text: str
    order: str
    backfill: str
    load: float
    preempt: bool
    replan: float | None
    restart_cost: float
    restartable: bool
    estimates: str
    preset: str | None
    faults: str | None
    retries: int | None
    checkpoint_interval: float | None
    feedback: str
    seed: int
    dataset_cache: tuple[float, float] | None
    gpu_power: tuple[float, float, float] | None
    curves_file: Path | None
    speeds_file: Path | None
    config: Path | None
    sharing: str | None
    shareable: bool
    opportunistic: float
    jobs_per_slot: int | None
    mig_model: str | None
    pair_speeds_file: Path | None
    journal: Path | None
    html: Path | None
    as_json: bool

    def check(self) -> None:
        """Raise BadParameter if a number is out of range or an output file can't be written."""
        check_load(self.load)
        for name, seconds in (("--replan", self.replan), ("--restart-cost", self.restart_cost)):
            if seconds is not None:
                check_seconds(name, seconds)
        check_interval("--checkpoint-interval", self.checkpoint_interval)
        check_writable("--html", self.html)
        check_writable("--journal", self.journal)

    def policy(self, of_file: Policy | None) -> Policy:
        """Return the scheduling policy that the options describe, or that of the configuration file.

        Options that the user gave precede the file.
        """
        if of_file is not None:
            return self._over(of_file)
        base = FAIR_POLICY if self.order == Order.FAIR.value else Policy()
        return dataclasses.replace(
            base,
            order=Order(self.order),
            backfill=Backfilling(self.backfill),
            estimates=Estimates(self.estimates),
            preempt=self.preempt,
            replan_seconds=base.replan_seconds if self.replan is None else self.replan,
            sharing=Sharing.NONE if self.sharing is None else Sharing(self.sharing),
        )

    def _over(self, policy: Policy) -> Policy:
        """Return the policy of the configuration file with the options that the user gave."""
        changes: dict[str, Any] = {}
        for name, kind in (("order", Order), ("backfill", Backfilling), ("estimates", Estimates), ("sharing", Sharing)):
            if _given(name):
                changes[name] = kind(getattr(self, name))
        if self.preempt:
            changes["preempt"] = True
        if self.replan is not None:
            changes["replan_seconds"] = self.replan
        return dataclasses.replace(policy, **changes)

    def slots(self, of_file: int) -> SharedSlots:
        """Return what the options, or the configuration file, say about shared slots. Raises TraceError."""
        found = shared_slots(self.jobs_per_slot, self.shareable, self.opportunistic, self.pair_speeds_file, self.seed)
        return found.of_file(of_file)

    def trace(self) -> Trace:
        """Read and return the trace of jobs. Its notes list the user's options that --preset overrides."""
        from scheduler_feedback.sim.simulation import read_trace

        trace = read_trace(self.jobs_file, self.format_name)
        if self.restartable:
            jobs = (dataclasses.replace(job, spec=structs.replace(job.spec, restartable=True)) for job in trace.jobs)
            trace = dataclasses.replace(trace, jobs=tuple(jobs))
        if self.preset is not None and (given := _given("backfill", "replan", "restart_cost")):
            note = f"{' and '.join(given)}: ignored, --preset {self.preset} sets its own values"
            trace = dataclasses.replace(trace, notes=(*trace.notes, note))
        return trace


class _Simulate(click.Group):
    """The command, with a hint for who gives the trace as an argument."""

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and ("/" in args[0] or "." in args[0]):
            raise click.UsageError(
                f"{args[0]!r} is not a command. To simulate the jobs of a file: --jobs {args[0]} --format FORMAT",
                context,
            )
        return super().resolve_command(context, args)


@click.group(invoke_without_command=True, cls=_Simulate, subcommand_metavar="[compare ...]")
@click.pass_context
@trace_options(required=False)
@click.option("--order", type=click.Choice([one.value for one in Order]), default="fair", show_default=True)
@click.option("--backfill", type=click.Choice([one.value for one in Backfilling]), default="easy", show_default=True)
@load_option
@click.option("--preempt", is_flag=True, help="Allow preemption; preempted gangs resume later.")
@click.option("--replan", type=float, metavar="SECONDS", help="Shortest time between two preemption evaluations.")
@restart_cost_option
@speeds_option
@click.option("--restartable", is_flag=True, help="Treat every job as restartable.")
@click.option(
    "--estimates",
    type=click.Choice([one.value for one in Estimates]),
    default="exact",
    show_default=True,
    help="Source of expected run times.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Policy, queues and jobs_per_slot of a gangwatch.toml; options that are given precede it.",
)
@click.option("--sharing", type=click.Choice([one.value for one in Sharing]), help="Rule for which jobs share slots.")
@sharing_options
@mig_option
@click.option("--preset", type=click.Choice([one.name for one in PRESETS]), help="Rules of a published simulation.")
@fault_options
@dataset_option
@power_options
@click.option("--journal", type=click.Path(path_type=Path), metavar="FILE", help="Record every cycle, for `replay`.")
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with the Gantt chart and queues."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
def simulate(context: click.Context, /, **options: Any) -> None:
    """Run the scheduler over a trace of jobs on a virtual clock, with the scheduling cycle of production.

    \b
    Example:
      gangwatch simulate --jobs philly.csv --format philly --nodes 64x8 --order fifo --backfill easy --json
      gangwatch simulate --jobs philly.csv --format philly --nodes 64x8 --preempt --restart-cost 300 --estimates history
      gangwatch simulate --jobs philly.csv --format philly --nodes 64x8 --order fifo --sharing gandiva --shareable
      gangwatch simulate --jobs trace1.csv --format muri --nodes 8x8 --order srsf --preset muri --html page.html
    """
    if context.invoked_subcommand is not None:
        if used := _given(*options):
            raise click.UsageError(f"{used[0]}: write the options of `compare` after `compare`")
        return
    _require(context, "jobs_file", "format_name", "nodes_text")
    from scheduler_feedback.sim.simulated_journal import JournalFile
    from scheduler_feedback.sim.simulated_nodes import divisible, nodes_of
    from scheduler_feedback.sim.simulation import Simulation

    given = Options(**options)
    given.check()
    with collecting_rarely(), showing(f"reading {given.jobs_file}", given.as_json):
        trace = given.trace()
    of_file, jobs_per_slot = (None, 1) if given.config is None else configured(given.config)
    policy, slots, nodes = given.policy(of_file), given.slots(jobs_per_slot), nodes_of(given.nodes_text)
    if given.mig_model is not None:
        policy, nodes = dataclasses.replace(policy, mig=True), divisible(nodes, given.mig_model)
    power = gpu_model(given.gpu_power, given.curves_file)
    check_power(policy, power)
    simulation = Simulation(
        trace=slots.trace(trace, policy.sharing),
        nodes=slots.nodes(nodes, policy.sharing),
        co_speed=slots.co_speed(policy.sharing, nodes),
        policy=policy,
        load=given.load,
        restart_cost_seconds=given.restart_cost,
        preset=given.preset,
        faults=given.faults,
        retries=given.retries,
        checkpoint_seconds=given.checkpoint_interval,
        feedback=given.feedback,
        seed=given.seed,
        speeds=real_speeds(given.speeds_file),
        power=power,
        datasets=dataset_loads(given.dataset_cache),
        spans=given.html is not None,
    )
    engine = simulation.engine(JournalFile(given.journal) if given.journal is not None else None)
    with collecting_rarely():
        report = _run_with_progress(engine, given.as_json)
    if given.html is not None:
        from scheduler_feedback.sim.page import write_page

        with showing(f"writing {given.html}", given.as_json):
            write_page(given.html, engine, report)
        say(f"page: {given.html}")
    if given.as_json:
        print_json(dataclasses.asdict(report))
    else:
        from gangwatch.display import rendering

        rendering.simulated(dataclasses.asdict(report))


simulate.add_command(compare)


def _require(context: click.Context, *parameters: str) -> None:
    """Raise MissingParameter for the first of these options that the user did not give.

    They are not declared as required, because `compare` has its own.
    """
    for name in parameters:
        if context.params[name] is None:
            parameter = next(one for one in context.command.params if one.name == name)
            raise click.MissingParameter(ctx=context, param=parameter)


def _given(*parameters: str) -> list[str]:
    """Return those of these parameters that the user gave, as options, such as --replan."""
    context = click.get_current_context()
    return [
        f"--{name.replace('_', '-')}"
        for name in parameters
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]


def _run_with_progress(engine: Engine, as_json: bool) -> Report:
    """Run the simulation, and show a progress bar if standard error is a terminal."""
    with counting("jobs ended", as_json) as progress:
        return engine.run(progress)
