# mypy: ignore-errors
"""What all training programs of the benchmark share: the plan, the batches, the job's own work, and its step times.

A plan is a JSON object: ``framework``, ``folder`` (of step times), ``datasets`` (their folder), ``seed``, ``work``
(size of a batch), ``device_seconds`` (time of such a batch on a device), ``loader`` ('memory', 'direct' or 'mapped'),
``own`` (a healthy class with its parameters) and ``steps``.
"""

import gc
import json
import mmap
import os
import random
import struct
import sys
import threading
import time
import zlib

_STEP = struct.Struct("<qq")
READ_BYTES = 1 << 19
PAGE = 4096
PAGES_A_STEP = 1024


class Job:
    """One rank's share of the job: its batches, its own work, and the record of its steps."""

    def __init__(self):
        self.plan = json.loads(sys.argv[1])
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.random = random.Random(f"{self.plan['seed']}.{self.rank}")
        self.own = self.plan["own"]
        self.step = 0
        path = f"{self.plan['folder']}/{os.environ['GANGWATCH_JOB']}.{self.rank}"
        self._times = open(f"{path}.steps", "wb", buffering=0)  # noqa: SIM115
        self._shard = f"{path}.shard"
        self._dataset = f"{self.plan['datasets']}/dataset.{self.rank}"
        self._threads = []
        self._load = {"memory": lambda: None, "direct": self._direct, "mapped": self._mapped}[self.plan["loader"]]
        if self.plan["loader"] != "memory":
            flags = os.O_RDONLY | (os.O_DIRECT if self.plan["loader"] == "direct" else 0)
            self._file = os.open(self._dataset, flags)
            self._bytes = os.fstat(self._file).st_size
            if self.plan["loader"] == "mapped":
                self._map = mmap.mmap(self._file, 0, prot=mmap.PROT_READ)
                self._map.madvise(mmap.MADV_RANDOM)
                for at in range(0, self._bytes, PAGE):
                    self._map[at]
            self._buffer = mmap.mmap(-1, READ_BYTES)
        if self.own["class"] == "garbage-collection":
            gc.disable()
            self._graph = [[i, [i]] for i in range(self.own["objects"])]
        if self.own["class"] == "loader-hiccups":
            with open(self._shard, "wb") as file:
                file.write(zlib.compress(random.Random(1).randbytes(1 << 20) * self.own["mebibytes"], 6))

    # --- batches -----------------------------------------------------------------------------------------------------

    def _direct(self):
        """Read a part of the dataset from the disk, past the page cache."""
        at = self.random.randrange(self._bytes // READ_BYTES) * READ_BYTES
        os.preadv(self._file, [self._buffer], at)

    def _mapped(self):
        """Read random pages of the mapped dataset. They stay in memory if the rank's memory suffices."""
        for _ in range(PAGES_A_STEP):
            self._map[self.random.randrange(self._bytes // PAGE) * PAGE]

    def load(self):
        """Load the batch of the next step, and return its size."""
        self._load()
        if self.own["class"] == "loader-hiccups" and self.random.random() < 1 / self.own["every"]:
            with open(self._shard, "rb") as file:
                zlib.decompress(file.read())
        if self.own["class"] == "uneven-batches":
            return max(1, round(self.plan["work"] * self.random.lognormvariate(0.0, self.own["sigma"])))
        return self.plan["work"]

    def device(self, share):
        """Wait for the device, which computes this share of a batch.

        The machine has no accelerators. A device's time uses no processor, so that a gang fits a small machine.
        """
        time.sleep(share * self.plan.get("device_seconds", 0.0))

    # --- work of the job itself --------------------------------------------------------------------------------------

    def due(self, name):
        """Return whether the work of this class is due after the current step."""
        return self.own["class"] == name and self.step % self.own["every"] == self.own["every"] - 1

    def save(self, content):
        """Write a checkpoint to the disk."""
        with open(f"{self._shard}.saved", "wb") as file:
            file.write(content)
            os.fsync(file.fileno())

    def save_later(self, content):
        """Compress and write a checkpoint in a thread, while the training continues."""
        thread = threading.Thread(target=lambda: self.save(zlib.compress(content, 9)), daemon=True)
        thread.start()

    def collect(self):
        """Collect garbage in a random step of this rank, as an interpreter without a fixed rule does."""
        if self.own["class"] == "garbage-collection" and self.random.random() < 1 / self.own["every"]:
            gc.collect()

    def ended(self):
        """Record the end of a step. Return whether the job goes on."""
        self._times.write(_STEP.pack(self.step, time.monotonic_ns()))
        self.step += 1
        return self.step < self.plan["steps"]
