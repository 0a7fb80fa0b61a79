"""Run the ranks of a program under gangwatch.torch: ``ranks.py RANKS MODULE PROGRAM [ARGUMENT ...]``.

Imports MODULE once and forks: the import of a framework takes most of the time of a short training.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import traceback

ranks, module, program = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
importlib.import_module(module)
if module == "deepspeed":
    # It would compile its transport through shared memory, for minutes. Without it, it uses gloo.
    importlib.import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False

children = []
for rank in range(ranks):
    child = os.fork()
    if not child:
        code = 1
        try:
            os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)})
            os.environ["LOCAL_WORLD_SIZE"] = str(ranks)
            sys.argv = ["gangwatch.torch", *program]
            runpy.run_module("gangwatch.torch", run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as end:
            code = 0 if end.code is None else 1
        except BaseException:
            traceback.print_exc()
        importlib.import_module("gangwatch.torch").attach().finish()
        sys.stdout.flush()
        os._exit(code)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
