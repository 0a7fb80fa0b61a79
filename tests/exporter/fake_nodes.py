"""Complete nodes with a fake NVML library and written sysfs and proc files. Their collectors run when a test asks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.collectors import Machine, make_collectors
from agent.node import Node
from agent.rank_attribution import Attribution
from agent.schema.frame import Frame, Layout
from tests import needs
from tests.fakes.nvml.build import build as build_nvml
from tests.fakes.nvml.control import FakeNvml
from tests.fakes.sysfs.tree import Tree
from tests.fakes.sysfs.tree import build as build_tree

NICS = {"h100": 8, "a100": 8, "b200": 8, "h100-mig": 8, "geforce": 0, "a100-bridge": 2, "gh200": 0}
"""Number of RDMA devices for each board."""


class FakeNode:
    """Node of one server model. ``frame`` runs the collectors that are due by the system clock."""

    def __init__(self, fake: FakeNvml, tree: Tree) -> None:
        self.fake, self.tree = fake, tree
        root = str(tree.root)
        machine = Machine(
            *(Attribution(None, root), None, root, root, str(fake.library)),
            kubelet_socket=None,
            kernel_log=str(tree.kernel_log),
        )
        collectors, self.left_out = make_collectors(machine)
        self.node = Node("n0", collectors, proc_root=root, version="0.0.0")

    def frame(self) -> tuple[Layout, Frame]:
        """Return a frame with all values. Profiling and rates need two runs, a tenth of a second apart."""
        self.node.tick()
        self.node.tick()
        time.sleep(0.12)
        return self.node.tick()


class Workshop:
    """Maker of fake nodes in a folder. It compiles the NVML library once; models with equal NIC counts share sysfs
    files."""

    def __init__(self, folder: Path) -> None:
        """Skip the test if there is no compiler."""
        needs.component("gcc", "gcc")
        self._folder = folder
        self._library = build_nvml(folder)
        self._trees: dict[int, Tree] = {}

    @contextmanager
    def node(self, board: str) -> Iterator[FakeNode]:
        nics = NICS[board]
        if nics not in self._trees:
            self._trees[nics] = build_tree(self._folder / f"sys-{nics}", nics=nics, gpus=8 if nics else 1)
        fake = FakeNvml(self._library)
        fake.reset(board)
        fake.set_clock(1000.0)
        node = FakeNode(fake, self._trees[nics])
        try:
            yield node
        finally:
            node.node.stop()
            fake.reset()
