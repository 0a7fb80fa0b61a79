"""Run programs of several frameworks, two ranks each, under gangwatch.torch: ``ranks.py RUNS``.

RUNS is a JSON list of objects with ``socket`` (GANGWATCH_SOCKET), ``port`` (MASTER_PORT) and ``program`` (file and
arguments). Imports the frameworks once and forks: their import takes most of the time of a short training.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import traceback
from typing import Any

RANKS = 2
IMPORTED = ("torch._dynamo", "transformers.trainer", "pytorch_lightning", "deepspeed")
"""Modules that the programs import; every optimizer imports the first one in its first step."""


def start(rank: int, run: dict[str, Any]) -> int:
    """Start a rank. Return the number of its process."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)})
        os.environ.update({"MASTER_PORT": str(run["port"]), "GANGWATCH_SOCKET": run["socket"]})
        sys.argv = ["gangwatch.torch", *run["program"]]
        runpy.run_module("gangwatch.torch", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = 1 if end.code else 0
    except BaseException:
        traceback.print_exc()
    importlib.import_module("gangwatch.torch").attach().finish()
    sys.stdout.flush()
    os._exit(code)


for name in IMPORTED:
    importlib.import_module(name)
# DeepSpeed would compile its transport through shared memory, for minutes. Without it, it uses gloo.
importlib.import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
for each in json.loads(sys.argv[1]):
    children = [start(rank, each) for rank in range(RANKS)]
    if any(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children):
        sys.exit(f"{each['program'][0]} failed")
