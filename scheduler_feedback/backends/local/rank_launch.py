"""Inputs for the start of a rank: its place in the gang, its environment, and its program.

A plan is the content of attempt.json: the fields of StartGang, and ``state_folder``, ``environment`` (the base below
the submitter's), ``nodes`` (by name: ``devices``, ``socket``), ``mig_devices`` (UUIDs of the MIG instances by rank;
empty: whole GPUs), ``master_address``, ``master_port``, ``use_cgroups``, ``decision_timeout_seconds``. Standard library
only: see local_processes.py.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Plan = Mapping[str, Any]


def ranks_on(plan: Plan, node: str) -> list[int]:
    """Return the attempt's ranks on the node, in the order of LOCAL_RANK."""
    return [rank for rank, slot in enumerate(plan["placement"]) if slot["node"] == node]


def nodes_of(plan: Plan) -> list[str]:
    """Return the attempt's nodes, in the order of GROUP_RANK: by their lowest rank."""
    return list(dict.fromkeys(slot["node"] for slot in plan["placement"]))


def marks(plan: Plan, node: str) -> dict[str, str]:
    """Return the environment variables that identify processes of the attempt on this node."""
    return {
        "GANGWATCH_JOB": plan["job_id"],
        "GANGWATCH_ATTEMPT": str(plan["attempt"]),
        "GANGWATCH_NODE": node,
        "GANGWATCH_SOCKET": plan["nodes"][node]["socket"],
    }


def rank_environment(plan: Plan, node: str, rank: int) -> dict[str, str]:
    """Return a rank's environment: base variables, then the submitter's, then those of the rank.

    Later variables replace earlier ones.

    The names are torchrun's (pytorch.org/docs/stable/elastic/run.html, "Environment Variables"). On a CPU slot the math
    libraries get one thread unless the submitter sets another number; each would otherwise use the whole machine.
    GANGWATCH_NODES: the gang's nodes with their ranks ('n1:4,n2:4'), the format of `mpirun --host`. GANGWATCH_ROLE:
    role of the rank's group, if it has one. GANGWATCH_ARRAY_INDEX: index of the job in its array, if it is in one.
    """
    local = ranks_on(plan, node)
    nodes = nodes_of(plan)
    devices = plan["nodes"][node]["devices"]
    environment: dict[str, str] = {**plan["environment"], **plan["spec"]["environment"]}
    if devices:
        spec = plan["spec"]
        if spec.get("opportunistic") and spec.get("slot_share"):  # under MPS, a limit of the client's multiprocessors
            environment.setdefault("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", f"{100 * spec['slot_share']:.0f}")
        mine = plan.get("mig_devices")  # a process can use one MIG instance only
        environment["CUDA_VISIBLE_DEVICES"] = (
            mine[rank] if mine else ",".join(devices[plan["placement"][each]["slot"]] for each in local)
        )
    else:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            environment.setdefault(name, "1")
    environment.update(
        RANK=str(rank),
        WORLD_SIZE=str(len(plan["placement"])),
        LOCAL_RANK=str(local.index(rank)),
        LOCAL_WORLD_SIZE=str(len(local)),
        GROUP_RANK=str(nodes.index(node)),
        GROUP_WORLD_SIZE=str(len(nodes)),
        MASTER_ADDR=plan["master_address"],
        MASTER_PORT=str(plan["master_port"]),
        GANGWATCH_NODES=",".join(f"{each}:{len(ranks_on(plan, each))}" for each in nodes),
        **marks(plan, node),
    )
    if (group := group_of(plan, rank)) is not None:
        environment["GANGWATCH_ROLE"] = group["role"]
    if plan["spec"].get("array_size"):
        environment["GANGWATCH_ARRAY_INDEX"] = plan["job_id"].rpartition(".")[2]
    return environment


def group_of(plan: Plan, rank: int) -> Mapping[str, Any] | None:
    """Return the rank's group; None if the gang has no groups."""
    first = 0
    for group in plan["spec"].get("groups", ()):
        first += group["ranks"]
        if rank < first:
            found: Mapping[str, Any] = group
            return found
    return None


def command_of(plan: Plan, rank: int) -> list[str]:
    """Return the rank's command: the command of its group if there is one, else the command of the job."""
    group = group_of(plan, rank)
    command: list[str] = (group["command"] if group is not None else None) or plan["spec"]["command"]
    return command


def name_of_command(plan: Plan, rank: int) -> str:
    """Return a name for the rank's command that contains no private text, for messages that every user may read."""
    group = group_of(plan, rank)
    return f"the command of group {group['role']}" if group is not None and group["command"] else "the command"


def working_directory(plan: Plan, environment: Mapping[str, str]) -> str:
    """Return the folder in which ranks start: the folder that the user submitted, else the home folder."""
    return plan["spec"]["working_directory"] or environment.get("HOME") or "/"


def find_program(command: str, environment: Mapping[str, str], directory: str, of: str = "the command") -> str:
    """Return the path of the program, found as by execvp(3). of: name of the command for the error message.

    Raises OSError if the program cannot be executed. Every user may read its message in the job's story, so the message
    contains neither the command nor the folder, which are private.
    """
    if not os.path.isdir(directory):
        raise FileNotFoundError("the working directory does not exist")
    named = "/" in command
    denied = False
    for folder in [""] if named else environment.get("PATH", os.defpath).split(":"):
        path = os.path.join(directory, folder, command)
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            denied = True
    if denied:
        raise PermissionError(f"the program of {of} is not executable")
    raise FileNotFoundError(
        f"the program of {of} does not exist" if named else f"the program of {of} is not on the job's PATH"
    )
