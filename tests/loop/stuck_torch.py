"""PyTorch training with FSDP2 over gloo. Rank 1 never enters the collective of a step: ``stuck_torch.py STEP``."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, after = dist.get_rank(), int(sys.argv[1])
model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)


def next_batch(step: int) -> torch.Tensor:
    if rank == 1 and step == after:
        Path(os.environ["STUCK"]).write_text(str(time.time()))
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()  # a deadlock
    time.sleep(0.1)
    return torch.randn(8, 32)


for step in range(10_000):
    model(next_batch(step)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
