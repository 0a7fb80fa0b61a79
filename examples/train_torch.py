"""Data-parallel training of a small network with torch's DistributedDataParallel: gloo on CPU, nccl on GPUs.

::

    torchrun --nproc-per-node 2 examples/train_torch.py --steps 200

gangwatch.torch reports the steps and waits: the line ``attach(model, optimizer)`` enables it. A program without this
line can be run as ``torchrun -m gangwatch.torch PROGRAM`` instead.

Checkpoints, SIGTERM and exit codes are as in train_dp.py. Exit codes: 0 finished; 75 stopped on request, with all steps
in the checkpoint; 1 failed. The project's tests run this program on CPU with gloo (torch 1.13 and 2.15), but not
with nccl.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gangwatch.torch import attach

INPUTS, CLASSES = 64, 10
STOPPED = 75


class StopRequest:
    """Flag that is set when SIGTERM arrives."""

    def __init__(self) -> None:
        self.made = False

    def listen(self) -> None:
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, *_: object) -> None:
        self.made = True


def network(seed: int, hidden: int) -> nn.Sequential:
    """Return a new network. With the same seed, its weights are the same on every rank."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)
    )


def batch_of(seed: int, rank: int, step: int, size: int, teacher: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and labels drawn from (seed, rank, step), so that a resumed training has the same data."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + rank) * 1_000_003 + step)
    inputs = torch.randn(size, INPUTS, generator=generator)
    return inputs, (inputs @ teacher).argmax(dim=1)


def save(path: Path, content: dict[str, Any]) -> None:
    """Replace the checkpoint file atomically. After a crash, the file has the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def digest_of(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def train(options: argparse.Namespace, stop: StopRequest) -> int:
    """Train to the last step or to a stop request; return the exit code."""
    rank, size = dist.get_rank(), dist.get_world_size()
    on_gpu = dist.get_backend() == "nccl"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    bare = network(options.seed, options.hidden).to(device)
    teacher = torch.randn(INPUTS, CLASSES, generator=torch.Generator().manual_seed(options.seed))
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.02, momentum=0.9)
    step = 0
    if options.checkpoint is not None and options.checkpoint.exists():
        # Every rank reads the file: it lies where all of them see it, and none writes before all have trained a step.
        saved = torch.load(options.checkpoint, map_location=device)
        if (saved["seed"], saved["hidden"]) != (options.seed, options.hidden):
            raise RuntimeError(f"{options.checkpoint} is of seed {saved['seed']}, hidden {saved['hidden']}")
        bare.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = int(saved["step"])
    first_step = step
    model = DistributedDataParallel(bare, device_ids=[device.index] if on_gpu else None)
    attachment = attach(model, optimizer)
    loss_of = nn.CrossEntropyLoss()
    losses: list[float] = []
    stopping = False
    while step < options.steps and not stopping:
        inputs, labels = batch_of(options.seed, rank, step, options.batch, teacher)
        optimizer.zero_grad()
        loss = loss_of(model(inputs.to(device)), labels.to(device))
        loss.backward()
        if options.pace_seconds > 0:
            time.sleep(options.pace_seconds)
        # The stop request is summed with the loss, so that all ranks stop after the same step.
        shared = torch.stack([loss.detach(), torch.tensor(float(stop.made), device=device)])
        dist.all_reduce(shared)
        optimizer.step()
        step += 1
        losses.append(float(shared[0]) / size)
        stopping = bool(shared[1] > 0)
        if stopping or step == options.steps or step % options.checkpoint_every == 0:
            if options.checkpoint is not None:
                if rank == 0:
                    state = {"model": bare.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    save(options.checkpoint, {**state, "seed": options.seed, "hidden": options.hidden})
                dist.barrier()
            if rank == 0:
                print(f"step {step} of {options.steps}: loss {losses[-1]:.4f}; {attachment.status}", flush=True)
    finished = step == options.steps
    if rank == 0 and options.result is not None:
        result = {
            "finished": finished,
            "steps": step,
            "steps_run": step - first_step,
            "resumed_from": first_step,
            "weights_sha256": digest_of(bare),
            "loss": {"first": losses[0], "last": losses[-1]} if losses else None,
        }
        options.result.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if finished else STOPPED


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=500, help="steps of the whole training")
    parser.add_argument("--checkpoint", type=Path, help="resume from it if it exists; SIGTERM saves and stops")
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden", type=int, default=256, help="width of the two hidden layers")
    parser.add_argument("--batch", type=int, default=2048, help="samples per rank and step")
    parser.add_argument("--pace-seconds", type=float, default=0.0, help="pause in every step, as an accelerator's time")
    parser.add_argument("--result", type=Path, help="file for rank 0's result (JSON)")
    options = parser.parse_args()
    stop = StopRequest()
    if options.checkpoint is not None:
        stop.listen()
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        code = train(options, stop)
    except RuntimeError as error:
        # A peer that is gone, or a checkpoint that is not ours. The process group cannot be left in good order now.
        print(f"train_torch: rank {os.environ['RANK']}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
        os._exit(1)
    dist.destroy_process_group()
    return code


if __name__ == "__main__":
    sys.exit(main())
