"""Loader of the dashboards in this package, or in another folder of the same form."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from agent.schema.errors import DashboardError
from dashboards.board import Board

FOLDER = Path(__file__).parent
ENDING = ".dashboard.py"


def dashboard_files(source: Path = FOLDER) -> Iterator[tuple[str, str, Path]]:
    """Yield (folder, name, path of the Python file) of every dashboard below `source`, in alphabetical order."""
    for path in sorted(source.glob(f"*/*{ENDING}")):
        yield path.parent.name, path.name.removesuffix(ENDING), path


def load(path: Path) -> Board:
    """Return the dashboard that a Python file defines. Raises DashboardError if there is none or it cannot be built."""
    spec = importlib.util.spec_from_file_location(f"dashboards_{path.name.removesuffix(ENDING)}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except DashboardError:
        raise
    except Exception as error:  # a file of the user's may raise anything
        raise DashboardError(f"{path}: {type(error).__name__}: {error}") from error
    board = getattr(module, "dashboard", None)
    if not isinstance(board, Board):
        raise DashboardError(f"{path}: the file defines no `dashboard`")
    return board


def load_all(source: Path = FOLDER) -> Iterator[tuple[str, str, Board]]:
    """Yield (folder, name, dashboard) of every dashboard below `source`. Raises DashboardError if one is invalid."""
    for folder, name, path in dashboard_files(source):
        yield folder, name, load(path)
