"""Options that the commands `simulate` and `simulate compare` share, and the checks of their values."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gangwatch.commands.options import Command
from scheduler_feedback.sim.simulated_feedback import FEEDBACKS
from scheduler_feedback.sim.traces import TRACES

if TYPE_CHECKING:
    from scheduler_feedback.core.state import Policy
    from scheduler_feedback.sim.speeds.dataset_loads import DatasetLoads
    from scheduler_feedback.sim.speeds.gpu_power import GpuModel
    from scheduler_feedback.sim.speeds.measured_speeds import MeasuredSpeeds
    from scheduler_feedback.sim.speeds.shared_slots import SharedSlots


def trace_options(*, required: bool) -> Callable[[Command], Command]:
    """Return a decorator that adds --jobs, --format and --nodes.

    required: whether click refuses a command line without them. If not, the command must do so.
    """
    mark = "" if required else "  [required]"  # click adds it to the help of required options

    def add(command: Command) -> Command:
        jobs = click.option(
            "--jobs",
            "jobs_file",
            required=required,
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help=f"Trace of jobs.{mark}",
        )
        form = click.option(
            "--format",
            "format_name",
            required=required,
            type=click.Choice([one.name for one in TRACES]),
            help=f"Format of the trace.{mark}",
        )
        nodes = click.option(
            "--nodes",
            "nodes_text",
            required=required,
            metavar="NxG|FILE",
            help=f"N nodes of G GPUs, or a topology file.{mark}",
        )
        return jobs(form(nodes(command)))

    return add


def mig_option(command: Command) -> Command:
    """Add the option --mig MODEL."""
    return click.option(
        "--mig",
        "mig_model",
        metavar="MODEL",
        help="All GPUs are of this model, such as A100-80GB, and the scheduler divides them into MIG instances for "
        "jobs with mig_profile.",
    )(command)


def load_option(command: Command) -> Command:
    """Add the option --load FACTOR."""
    return click.option(
        "--load", default=1.0, show_default=True, metavar="FACTOR", help="Jobs arrive FACTOR times as fast."
    )(command)


def speeds_option(command: Command) -> Command:
    """Add the option --speeds FILE."""
    return click.option(
        "--speeds",
        "speeds_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Real speeds by workload, GPU type, ranks and level, or throughputs of Gavel. Default: proportional to "
        "the ranks.",
    )(command)


def restart_cost_option(command: Command) -> Command:
    """Add the option --restart-cost SECONDS."""
    return click.option(
        "--restart-cost",
        type=float,
        default=0.0,
        show_default=True,
        metavar="SECONDS",
        help="Time that each restart loses.",
    )(command)


def sharing_options(command: Command) -> Command:
    """Add --shareable, --opportunistic, --jobs-per-slot and --pair-speeds."""
    shareable = click.option(
        "--shareable", is_flag=True, help="All jobs may share slots and are preemptible. Default: as the trace says."
    )
    opportunistic = click.option(
        "--opportunistic",
        type=click.FloatRange(0, 1),
        default=0.0,
        metavar="PART",
        help="Part of the jobs, such as 0.3, that run on leftovers only (rule antman); ordinary under other rules.",
    )
    many = click.option(
        "--jobs-per-slot",
        type=click.IntRange(1, 64),
        metavar="N",
        help="Maximum jobs on one slot. Default: that of the configuration file, else 2, 4 with the rule muri.",
    )
    speeds = click.option(
        "--pair-speeds",
        "pair_speeds_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Real speeds of pairs on one slot, as JSON: workload, other workload, speed; or throughputs of Gavel. "
        "Default: equal shares.",
    )
    return shareable(opportunistic(many(speeds(command))))


def dataset_option(command: Command) -> Command:
    """Add the option --dataset-cache."""
    return click.option(
        "--dataset-cache",
        type=(click.FloatRange(min=0, min_open=True), click.FloatRange(min=0, min_open=True)),
        metavar="GIB GIB_PER_SECOND",
        help="Real cache of each node for the datasets of jobs, and rate at which a node loads others. Default: jobs "
        "start without loading.",
    )(command)


def dataset_loads(given: tuple[float, float] | None) -> DatasetLoads | None:
    """Return the caches that the option describes. Raises BadParameter."""
    if given is None:
        return None
    if not all(map(math.isfinite, given)):
        raise click.BadParameter("must be two numbers", param_hint="--dataset-cache")
    from scheduler_feedback.sim.speeds.dataset_loads import DatasetLoads

    return DatasetLoads(*given)


def power_options(command: Command) -> Command:
    """Add the options --gpu-power and --power-curves."""
    watts = click.FloatRange(min=0, min_open=True)
    model = click.option(
        "--gpu-power",
        type=(watts, watts, watts),
        metavar="IDLE LEAST MOST",
        help="Power of an idle GPU, and its lowest and highest power limit, in watts. A power budget of the "
        "configuration then sets limits between them. Default: GPUs have no limits.",
    )
    curves = click.option(
        "--power-curves",
        "curves_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="CSV file with workload, limit_watts, speed and watts. Other workloads have the mean curve of six "
        "trainings on a V100, and draw their limit.",
    )
    return model(curves(command))


def gpu_model(given: tuple[float, float, float] | None, curves_file: Path | None) -> GpuModel | None:
    """Return the power model that the options describe. Raises BadParameter, and TraceError for a bad file."""
    if given is None:
        if curves_file is not None:
            raise click.BadParameter("needs --gpu-power", param_hint="--power-curves")
        return None
    idle, least, most = given
    if not all(map(math.isfinite, given)) or not idle <= least <= most:
        raise click.BadParameter("must be three numbers with IDLE <= LEAST <= MOST", param_hint="--gpu-power")
    from scheduler_feedback.sim.speeds.gpu_power import GpuModel, read_curves

    return GpuModel(idle, least, most, {} if curves_file is None else read_curves(curves_file))


def check_power(policy: Policy, model: GpuModel | None) -> None:
    """Raise UsageError if the policy has a power budget and the simulated GPUs have no limits."""
    if policy.power_budget_watts and model is None:
        raise click.UsageError("policy.power_budget_watts needs --gpu-power IDLE LEAST MOST (of each simulated GPU)")


def fault_options(command: Command) -> Command:
    """Add --faults, --retries, --checkpoint-interval, --feedback and --seed."""
    faults = click.option(
        "--faults",
        metavar="PRESET|FILE",
        help="Nodes that become slow (transient, persistent, or a file) or fail (failures).",
    )
    retries = click.option(
        "--retries", type=click.IntRange(min=0), metavar="N", help="Retries of each job. Default: those of the trace."
    )
    checkpoints = click.option(
        "--checkpoint-interval",
        type=float,
        metavar="SECONDS",
        help="Interval of checkpoints of restartable jobs. Default: that of the trace.",
    )
    feedback = click.option("--feedback", type=click.Choice(FEEDBACKS), default="off", show_default=True)
    seed = click.option("--seed", default=0, show_default=True, help="Seed of the faults and of the detector's errors.")
    return faults(retries(checkpoints(feedback(seed(command)))))


def check_load(load: float) -> None:
    """Raise BadParameter if the value of --load is out of range."""
    if not (math.isfinite(load) and load > 0):
        raise click.BadParameter(f"{load:g}: it must be more than 0", param_hint="--load")


def check_interval(option: str, seconds: float | None) -> None:
    """Raise BadParameter if the interval of an option is out of range. None: not given."""
    if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
        raise click.BadParameter(f"{seconds:g}: it must be more than 0", param_hint=option)


def check_seconds(option: str, seconds: float) -> None:
    """Raise BadParameter if the seconds of an option are out of range."""
    if not (math.isfinite(seconds) and seconds >= 0):
        raise click.BadParameter(f"{seconds:g}: it cannot be less than 0", param_hint=option)


def check_writable(option: str, file: Path | None) -> None:
    """Raise BadParameter if the file of an option can't be written. None: not given."""
    if file is None:
        return
    folder = file.absolute().parent
    if file.is_dir():
        why = "it is a folder"
    elif not folder.is_dir():
        why = "its folder does not exist"
    elif not os.access(file if file.exists() else folder, os.W_OK):
        why = "it can't be written"
    else:
        return
    raise click.BadParameter(f"{file}: {why}", param_hint=option)


def real_speeds(file: Path | None) -> MeasuredSpeeds | None:
    """Return the real speeds in the file of --speeds; None without one. Raises TraceError."""
    if file is None:
        return None
    from scheduler_feedback.sim.speeds.gavel_throughputs import is_gavel, read_gavel
    from scheduler_feedback.sim.speeds.measured_speeds import read_speeds

    return read_gavel(file).speeds if is_gavel(file) else read_speeds(file)


def configured(file: Path) -> tuple[Policy, int]:
    """Return the policy of a gangwatch.toml, and its number of jobs on a slot. Raises ConfigError."""
    from gangwatch.configuration.config_file import load

    config = load(file)
    return config.policy, config.cluster.jobs_per_slot


def shared_slots(
    jobs_per_slot: int | None, shareable: bool, opportunistic: float, pair_speeds_file: Path | None, seed: int
) -> SharedSlots:
    """Return what the options say about shared slots. Raises TraceError for a bad file of pair speeds."""
    from scheduler_feedback.sim.speeds.shared_slots import SharedSlots, read_pair_speeds

    pairs = {} if pair_speeds_file is None else read_pair_speeds(pair_speeds_file)
    return SharedSlots(jobs_per_slot, shareable, opportunistic, pairs, seed)
