"""Tensor- and pipeline-parallel training in numpy, which continues on another number of ranks with another layout.

The network is a chain of blocks, x + relu(x A) B. A layout has `pipeline` stages with equal numbers of blocks, and in
each stage `tensor` ranks, which divide the columns of A and the rows of B. Every rank has only its own parts of the
parameters and their momentum. The outputs of a block are summed over all ranks, of which those of other stages add
nothing. All ranks see the same batch, so the loss depends on the layout only by rounding.

The number of ranks chooses the layout (LAYOUTS). A checkpoint is a folder with one file for each rank, and a manifest
with the layout. On resumption, each rank reads from the old parts what its own new parts contain, and nothing else.

    gangwatch submit --ranks 2 --sizes 1,2,4 --reshard-cost 5 --restartable -- \
        python examples/train_reshard.py --steps 2000 --checkpoint /tmp/a

Ranks connect as in train_dp.py, with the same exit codes: 0 finished; 75 stopped on request, run again to resume;
1 failed; 2 wrong command line.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from train_dp import STOPPED, Ring, StoppedError, StopRequest, TrainingError, form_ring, write_whole

from gangwatch import steps

BLOCKS, WIDTH, HIDDEN = 4, 16, 32
LEARNING_RATE, MOMENTUM = 0.05, 0.9
LAYOUTS = {1: (1, 1), 2: (2, 1), 4: (2, 2), 8: (4, 2)}
"""(tensor, pipeline) by the number of ranks. Submit the job with these numbers as its --sizes."""

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """Part of the parameters that one rank has."""

    blocks: range
    """Blocks of its pipeline stage."""
    hidden: range
    """Columns of A and rows of B of these blocks."""


def part_of(rank: int, tensor: int, pipeline: int) -> Part:
    """Return the part of this rank: ranks of one stage are next to each other."""
    stage, index = divmod(rank, tensor)
    blocks, hidden = BLOCKS // pipeline, HIDDEN // tensor
    return Part(range(stage * blocks, (stage + 1) * blocks), range(index * hidden, (index + 1) * hidden))


class Shard:
    """A rank's parameters and momentum: by block, with the columns of A and the rows of B that the rank has."""

    def __init__(self, part: Part, seed: int) -> None:
        self.part = part
        self.arrays: dict[str, Matrix] = {}
        columns = slice(part.hidden.start, part.hidden.stop)
        for block in part.blocks:
            random = np.random.default_rng([seed, block])
            first, second = random.standard_normal((WIDTH, HIDDEN)), random.standard_normal((HIDDEN, WIDTH))
            self.arrays[f"a{block}"] = first[:, columns] / np.sqrt(WIDTH)
            self.arrays[f"b{block}"] = second[columns] / np.sqrt(HIDDEN) / BLOCKS
        for name in list(self.arrays):
            self.arrays[f"momentum {name}"] = np.zeros_like(self.arrays[name])

    def step(self, ring: Ring, inputs: Matrix, targets: Matrix) -> float:
        """Make one step of gradient descent, and return the mean squared error before it."""
        kept: dict[int, tuple[Matrix, Matrix]] = {}
        value = inputs
        for block in range(BLOCKS):
            added = np.zeros_like(value)
            if block in self.part.blocks:
                inner = np.maximum(value @ self.arrays[f"a{block}"], 0)
                kept[block] = value, inner
                added = inner @ self.arrays[f"b{block}"]
            value = value + sum_over(ring, added)
        error = value - targets
        back = 2 * error / error.size
        for block in reversed(range(BLOCKS)):
            added = np.zeros_like(back)
            if block in self.part.blocks:
                before, inner = kept[block]
                inside = (back @ self.arrays[f"b{block}"].T) * (inner > 0)
                added = inside @ self.arrays[f"a{block}"].T
                self._update(f"b{block}", inner.T @ back)
                self._update(f"a{block}", before.T @ inside)
            back = back + sum_over(ring, added)
        return float(np.mean(error**2))

    def _update(self, name: str, gradient: Matrix) -> None:
        momentum = self.arrays[f"momentum {name}"]
        momentum *= MOMENTUM
        momentum += gradient
        self.arrays[name] -= LEARNING_RATE * momentum


def sum_over(ring: Ring, matrix: Matrix) -> Matrix:
    """Return the sum of the matrix over all ranks."""
    flat = matrix.reshape(-1).copy()
    ring.all_reduce(flat)  # type: ignore[arg-type]  # adds any type of number; its buffers have the vector's type
    return flat.reshape(matrix.shape)


# --- checkpoint ------------------------------------------------------------------------------------------------------


def save(ring: Ring, shard: Shard, folder: Path, step: int, layout: tuple[int, int], seed: int) -> None:
    """Write the rank's file; once all ranks have, rank 0 replaces the manifest, which makes the checkpoint valid."""
    folder.mkdir(parents=True, exist_ok=True)
    inside = folder / f"step-{step}"
    inside.mkdir(exist_ok=True)
    with (inside / f"rank-{ring.rank}.npz.unfinished").open("wb") as file:
        np.savez(file, **shard.arrays)  # type: ignore[arg-type]
    (inside / f"rank-{ring.rank}.npz.unfinished").rename(inside / f"rank-{ring.rank}.npz")
    ring.all_reduce(np.zeros(ring.size, np.float32))  # all files are written
    if ring.rank == 0:
        manifest = {"step": step, "tensor": layout[0], "pipeline": layout[1], "seed": seed}
        write_whole(folder / "manifest.json", json.dumps(manifest).encode() + b"\n")
        for other in folder.glob("step-*"):
            if other != inside:
                shutil.rmtree(other, ignore_errors=True)
    ring.all_reduce(np.zeros(ring.size, np.float32))  # the manifest is written


def resume(shard: Shard, folder: Path, seed: int) -> int:
    """Fill the shard from a checkpoint of any layout, and return its number of steps; 0 without a checkpoint.

    Raises TrainingError if the checkpoint is incomplete, damaged or of another training.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        step, tensor, pipeline = (int(manifest[key]) for key in ("step", "tensor", "pipeline"))
        if manifest["seed"] != seed:
            raise ValueError(f"of seed {manifest['seed']}, this is seed {seed}")
        if (tensor, pipeline) not in LAYOUTS.values():
            raise ValueError(f"unknown layout {tensor} x {pipeline}")
        for rank in range(tensor * pipeline):
            _take(shard, part_of(rank, tensor, pipeline), folder / f"step-{step}" / f"rank-{rank}.npz")
    except FileNotFoundError as error:
        if error.filename == str(folder / "manifest.json"):
            return 0
        raise TrainingError(f"{error.filename}: missing from the checkpoint") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"{folder}: no checkpoint of this program: {error}") from None
    return step


def _take(shard: Shard, old: Part, file: Path) -> None:
    """Copy what the shard and the old part have in common."""
    mine = shard.part
    low, high = max(mine.hidden.start, old.hidden.start), min(mine.hidden.stop, old.hidden.stop)
    blocks = [block for block in mine.blocks if block in old.blocks]
    if low >= high or not blocks:
        return
    to = slice(low - mine.hidden.start, high - mine.hidden.start)
    since = slice(low - old.hidden.start, high - old.hidden.start)
    with np.load(file) as arrays:
        for block in blocks:
            for kind in ("", "momentum "):
                shard.arrays[f"{kind}a{block}"][:, to] = arrays[f"{kind}a{block}"][:, since]
                shard.arrays[f"{kind}b{block}"][to] = arrays[f"{kind}b{block}"][since]


# --- training --------------------------------------------------------------------------------------------------------


def batch_of(seed: int, step: int, size: int) -> tuple[Matrix, Matrix]:
    """Return the inputs and the targets of a step. They depend on seed and step only."""
    teacher = np.random.default_rng([seed, BLOCKS]).standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)
    inputs = np.random.default_rng([seed, BLOCKS, step]).standard_normal((size, WIDTH))
    return inputs, np.tanh(inputs @ teacher)


def train(ring: Ring, options: argparse.Namespace, stop: StopRequest) -> int:
    """Train to the last step or to a stop request; return the exit code."""
    layout = LAYOUTS[ring.size]
    shard = Shard(part_of(ring.rank, *layout), options.seed)
    step = first_step = resume(shard, options.checkpoint, options.seed) if options.checkpoint is not None else 0
    reporter, losses, stopping = steps.reporter(), list[float](), False
    while step < options.steps and not stopping:
        with reporter.step(number=step, tokens=options.batch):
            losses.append(shard.step(ring, *batch_of(options.seed, step, options.batch)))
            if options.pace_seconds > 0:
                time.sleep(options.pace_seconds)
            asked = np.full(ring.size, stop.made, np.float32)
            ring.all_reduce(asked)
            stopping = bool(asked[0] > 0)
        step += 1
        if options.checkpoint is not None and (stopping or step in (options.steps,) or step % options.every == 0):
            save(ring, shard, options.checkpoint, step, layout, options.seed)
    finished = step == options.steps
    if ring.rank == 0:
        parts = f"{layout[0]} x {layout[1]}"
        print(f"{'finished' if finished else 'stopped'} at step {step} with layout {parts}, from step {first_step}")
        if options.result is not None:
            result = {"finished": finished, "steps": step, "resumed_from": first_step, "layout": layout, "loss": losses}
            write_whole(options.result, json.dumps(result).encode() + b"\n")
    return 0 if finished else STOPPED


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=500, help="steps of the whole training")
    parser.add_argument("--checkpoint", type=Path, help="folder: resume from it if it exists; SIGTERM saves and stops")
    parser.add_argument("--every", type=int, default=50, metavar="STEPS", help="steps between two checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=64, help="samples per step")
    parser.add_argument("--pace-seconds", type=float, default=0.0, help="pause in every step")
    parser.add_argument("--result", type=Path, help="file for rank 0's result (JSON)")
    options = parser.parse_args(arguments)
    for name in ("steps", "every", "batch"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: at least 1")
    return options


def main(arguments: list[str] | None = None) -> int:
    options, stop = parse(arguments), StopRequest()
    if options.checkpoint is not None:
        stop.listen()
    rank = 0
    try:
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
        if size not in LAYOUTS:
            sizes = ", ".join(map(str, LAYOUTS))
            raise TrainingError(f"no layout for {size} ranks: submit the job with --sizes {sizes}")
        ring = form_ring(rank, size, address, port, stop)
        try:
            return train(ring, options, stop)
        finally:
            ring.close()
    except StoppedError:
        return STOPPED
    except (TrainingError, OSError, ValueError) as error:
        print(f"train_reshard: rank {rank}: {error}", file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
