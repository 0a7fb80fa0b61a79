"""Small training with PyTorch's DistributedDataParallel over gloo.

python train_torch.py PLAN

PLAN is a JSON object: steps, rest_seconds (pause per step), report (true: report steps to gangwatch). On SIGTERM it
exits with 143.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import evidence  # type: ignore[import-not-found,unused-ignore]


def main() -> None:
    plan = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: (evidence.write("terminated"), evidence.end(143)))
    evidence.write("start", parent=os.getppid())
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ["RANK"]))
    reporter = None
    if plan.get("report"):
        from gangwatch import steps

        reporter = steps.reporter()
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(plan["steps"]):
        if reporter is None:
            train(torch, model, optimizer, plan)
        else:
            with reporter.step():
                train(torch, model, optimizer, plan)
    evidence.end(0)


def train(torch: object, model: object, optimizer: object, plan: dict[str, float]) -> None:
    """Run one training step."""
    optimizer.zero_grad()  # type: ignore[attr-defined]
    model(torch.randn(16, 32)).square().mean().backward()  # type: ignore[attr-defined,operator]
    optimizer.step()  # type: ignore[attr-defined]
    time.sleep(plan.get("rest_seconds", 0.05))


if __name__ == "__main__":
    main()
