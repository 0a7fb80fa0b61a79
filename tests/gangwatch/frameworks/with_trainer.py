"""Training with the Hugging Face Trainer. Rank 1 loads its data slowly: ``with_trainer.py FOLDER STEPS SECONDS``."""

from __future__ import annotations

import os
import sys
import time

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

folder, steps, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])


class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random rows and their sums."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, _: int) -> dict[str, torch.Tensor]:
        if os.environ["RANK"] == "1":
            time.sleep(seconds / 8)  # two micro-batches of four rows
        row = torch.randn(32)
        return {"row": row, "labels": row.sum().view(1)}


class Model(nn.Module):
    """Two layers and a squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, row: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        guess = self.layers(row)
        return {"loss": (guess - labels).square().mean(), "logits": guess}


Trainer(
    model=Model(),
    args=TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=5,
        disable_tqdm=True,
    ),
    train_dataset=Data(),
).train()
