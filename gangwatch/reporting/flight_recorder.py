"""Collectives in progress according to PyTorch's flight recorder. Standard library only, Python 3.8 or newer.

PyTorch records the newest collectives of each process: those of NCCL since 2.4, those of gloo since about 2.10, also
collectives that C++ issues (DistributedDataParallel). The recorder is on unless TORCH_FR_BUFFER_SIZE=0. It shows
collectives in which the host does not wait: on a GPU, ``Work.wait`` returns before the collective ends.

Source of the format: torch/csrc/distributed/c10d/FlightRecorder.hpp, version 2.10 of the dump, and dumps of torch 2.15
with gloo. The tests of this project have not read a dump of NCCL.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple  # noqa: UP035 (Python 3.8)

DUMP_SECONDS = 2.0
"""Maximum time in seconds of a dump. A dump asks the CUDA driver, which may be what blocks the process. The agent waits
three seconds for the answer."""

MAX_RECORDED = 20_000
"""Maximum number of recorded collectives (TORCH_FR_BUFFER_SIZE, 2,000 by default). A larger recorder is not read: its
dump would take too long."""

MAX_NAMED_RANKS = 8
"""A group's ranks are listed as ranges, at most this number of ranges."""

_Recorded = Tuple[List[Dict[str, Any]], Set[str]]  # noqa: UP006
_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8, "Double": 8,
}  # fmt: skip


def merged(waiting: Optional[Mapping[str, Any]]) -> Optional[Mapping[str, Any]]:  # noqa: UP045
    """Return the collective in progress, with the recorder's number where there is one.

    waiting: the collective in which the process waits, as collective_waits.py reports it; None if it waits in none.
    All ranks must number the collectives of a group alike, so a number of another source is replaced.
    """
    recorded = in_progress()
    if recorded is None:
        return waiting
    active, groups = recorded
    if waiting is None:
        return active[0] if active else None
    group = waiting.get("group")
    if group not in groups or "sequence" not in waiting:
        return waiting
    found = {name: value for name, value in waiting.items() if name != "sequence"}
    same = next((one for one in active if one["group"] == group and "sequence" in one), None)
    return found if same is None else {**found, "sequence": same["sequence"]}


def in_progress() -> Optional[_Recorded]:  # noqa: UP045
    """Return the collectives that this process has issued and that have not ended, the oldest first, and the groups
    with recorded collectives.

    None if torch records nothing here or does not answer in time. Does not import torch.
    """
    modules = sys.modules
    c10d = modules.get("torch._C._distributed_c10d") or getattr(modules.get("torch._C"), "_distributed_c10d", None)
    dumps = [getattr(c10d, name) for name in _DUMPS if hasattr(c10d, name)]
    if not dumps or _buffer_size() > MAX_RECORDED:
        return None
    found: List[_Recorded] = []  # noqa: UP006
    thread = threading.Thread(target=lambda: found.append(_read(dumps)), name="gangwatch-flight-recorder", daemon=True)
    thread.start()
    thread.join(DUMP_SECONDS)
    return found[0] if found and found[0][1] else None


def _buffer_size() -> int:
    text = os.environ.get("TORCH_FR_BUFFER_SIZE") or os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE") or "0"
    return int(text) if text.isdecimal() else 0


def _read(dumps: List[Any]) -> _Recorded:  # noqa: UP006
    active: List[Dict[str, Any]] = []  # noqa: UP006
    groups: Set[str] = set()  # noqa: UP006
    for dump in dumps:
        try:
            of_dump = parse(json.loads(dump(True, False)))
        except Exception:  # a dump of an unknown format
            continue
        active += of_dump[0]
        groups |= of_dump[1]
    return active, groups


def parse(dump: Mapping[str, Any]) -> _Recorded:
    """Return the collectives of a dump (JSON) that have not ended, the oldest first, as rank_stacks.py reports
    them, and the names of all recorded groups.

    Raise KeyError, TypeError or ValueError if the dump has another format.
    """
    config, entries = dump.get("pg_config", {}), dump.get("entries", ())
    active = [one for one in entries if not one["retired"] and one["state"] != "completed"]
    active.sort(key=lambda one: int(one["record_id"]))
    return [_described(one, config) for one in active], {_name_of(one) for one in entries}


def _name_of(entry: Mapping[str, Any]) -> str:
    """Return the name of the entry's group, as gangwatch.reporting.collective_waits names it."""
    name, description = (*entry["process_group"], "")[:2]
    return f"{name} ({description})" if description not in ("", "undefined") else str(name)


def _described(entry: Mapping[str, Any], groups: Mapping[str, Any]) -> Dict[str, Any]:  # noqa: UP006
    name = str(entry["process_group"][0])
    ranks = groups.get(name, {}).get("ranks", "")
    found: Dict[str, Any] = {  # noqa: UP006
        "operation": str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"]),
        "group": _name_of(entry),
        "ranks": ranges([int(one) for one in ranks.strip("[]").split(",") if one.strip()]) or _ranks_of(name),
    }
    if not entry["is_p2p"]:
        found["sequence"] = int(entry["collective_seq_id"])
    sizes = list(zip(entry.get("input_sizes", ()), entry.get("input_dtypes", ())))  # noqa: B905 (Python 3.8)
    if sizes and all(dtype in _BYTES for _, dtype in sizes):
        found["bytes"] = sum(_count(shape) * _BYTES[dtype] for shape, dtype in sizes)
    return found


def _count(shape: List[int]) -> int:  # noqa: UP006
    count = 1
    for length in shape:
        count *= int(length)
    return count


def _ranks_of(name: str) -> str:
    """Return the global ranks of this process's group of that name as ranges; '' if they are not known."""
    try:
        world = sys.modules["torch.distributed.distributed_c10d"]._world
        group = next(group for group, its_name in dict(world.pg_names).items() if str(its_name) == name)
        return ranges(sorted(world.pg_group_ranks[group]))
    except Exception:  # torch keeps them elsewhere
        return ""


def ranges(ranks: List[int]) -> str:  # noqa: UP006
    """Return sorted ranks as ranges, for example 0-3,8; at most MAX_NAMED_RANKS ranges, then their number."""
    spans: List[List[int]] = []  # noqa: UP006
    for rank in ranks:
        if spans and spans[-1][-1] == rank - 1:
            spans[-1][1:] = [rank]
        else:
            spans.append([rank])
    shown = ",".join("-".join(map(str, span)) for span in spans[:MAX_NAMED_RANKS])
    return shown if len(spans) <= MAX_NAMED_RANKS else f"{shown} and others, {len(ranks)} in all"
