"""Loader of the dashboards in this package."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from agent.schema.errors import DashboardError
from dashboards.board import Board

FOLDER = Path(__file__).parent
ENDING = ".dashboard.py"


def dashboard_files() -> Iterator[tuple[str, str, Path]]:
    """Return (folder, name, file) of every dashboard, in order."""
    for path in sorted(FOLDER.glob(f"*/*{ENDING}")):
        yield path.parent.name, path.name.removesuffix(ENDING), path


def load(path: Path) -> Board:
    """Return the dashboard of a file. Raises DashboardError if the file has none, or if it cannot be built."""
    spec = importlib.util.spec_from_file_location(f"dashboards_{path.name.removesuffix(ENDING)}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    board = getattr(module, "dashboard", None)
    if not isinstance(board, Board):
        raise DashboardError(f"{path}: the file defines no `dashboard`")
    return board


def load_all() -> Iterator[tuple[str, str, Board]]:
    """Return (folder, name, dashboard) of every dashboard. Raises DashboardError as `load` does."""
    for folder, name, path in dashboard_files():
        yield folder, name, load(path)
