"""Training with PyTorch Lightning. Rank 1 is slow: ``with_lightning.py FOLDER STEPS SECONDS``."""

from __future__ import annotations

import os
import sys
import time

import pytorch_lightning
import torch
from torch import nn

folder, steps, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])


class Model(pytorch_lightning.LightningModule):
    """Two layers. Lightning calls the training step within ``optimizer.step``."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, rows: torch.Tensor, _: int) -> torch.Tensor:
        if os.environ["RANK"] == "1":
            time.sleep(seconds)
        return self.layers(rows).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 0.01)


pytorch_lightning.Trainer(
    max_steps=steps, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
).fit(Model(), torch.utils.data.DataLoader(torch.randn(4096, 32), batch_size=4))  # fmt: skip
