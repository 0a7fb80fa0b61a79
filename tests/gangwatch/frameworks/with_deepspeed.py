"""Training with DeepSpeed's ZeRO and two parameter groups. Rank 1 is slow.

``with_deepspeed.py FOLDER STEPS SECONDS STAGE``
"""

from __future__ import annotations

import os
import sys
import time

import deepspeed
import torch
from torch import nn

steps, seconds, stage = int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
parameters = list(model.parameters())
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=[
        {"params": [one for one in parameters if one.dim() > 1], "weight_decay": 0.1},
        {"params": [one for one in parameters if one.dim() == 1], "weight_decay": 0.0},
    ],
    config={
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
    },
)
for _ in range(steps):
    if os.environ["RANK"] == "1":
        time.sleep(seconds)
    engine.backward(engine(torch.randn(4, 32)).square().mean())
    engine.step()
