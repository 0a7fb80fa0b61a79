"""Our own packages are loaded from beside this one, whatever else is called `agent` or `exporter`.

The program's packages have common names. A file of that name in the current folder, or another distribution that was
installed over ours, would be imported instead. Standard library only, and nothing of ours: this runs before all else.
"""

from __future__ import annotations

import os
import sys

PACKAGES = ("agent", "exporter", "scheduler_feedback", "dashboards")

MARK = b'PART_OF = "gangwatch"'
"""A line that the first module of each of our packages holds."""

INSTALL = "install gangwatch again in an environment of its own, by `pipx install --force` or `uv tool install --force`"


class ForeignModuleError(Exception):
    """A package of ours is missing, or something else is in its place. The text names the path and what to do."""


def guard() -> None:
    """Take the current folder off the import path and load our packages from beside this one.

    The current folder stays where it holds this very program (a checkout). Raises ForeignModuleError.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    _leave_current_folder(home)
    for name in PACKAGES:
        _load(name, home)


def _leave_current_folder(home: str) -> None:
    """Drop what `python -m` and an empty or relative entry of PYTHONPATH add to the import path."""
    try:
        here = os.getcwd()
    except OSError:
        return  # it was removed: nothing can be imported from it
    if os.path.realpath(here) == os.path.realpath(home):
        return
    first = 0 if sys.flags.safe_path else 1
    given = os.environ.get("PYTHONPATH", "") if not sys.flags.ignore_environment else ""
    entries = given.split(os.pathsep) if given else []
    relative = {os.path.abspath(entry) for entry in entries if not os.path.isabs(entry)}
    head, rest = sys.path[: first + len(entries)], sys.path[first + len(entries) :]
    kept = [
        entry
        for place, entry in enumerate(head)
        if not (place < first and os.path.abspath(entry) == here) and os.path.abspath(entry) not in relative
    ]
    sys.path[:] = kept + rest


def _load(name: str, home: str) -> None:
    folder = os.path.join(home, name)
    file = os.path.join(folder, "__init__.py")
    try:
        with open(file, "rb") as source:
            ours = MARK in source.read()
    except OSError:
        raise ForeignModuleError(f"{folder} is missing: gangwatch is installed in part only; {INSTALL}") from None
    if not ours:
        raise ForeignModuleError(f"{file} is not gangwatch's{_owner(name)}; {INSTALL}")
    if name not in sys.modules:
        # Only while this package is imported, which imports nothing: what is installed here must not hide the
        # standard library.
        sys.path.insert(0, home)
        try:
            __import__(name)
        finally:
            sys.path.remove(home)
    loaded = getattr(sys.modules[name], "__file__", None) or "?"
    if os.path.realpath(loaded) != os.path.realpath(file):
        raise ForeignModuleError(
            f"{loaded} was loaded as `{name}` instead of {file}: rename it or take its folder off PYTHONPATH, "
            f"or {INSTALL}"
        )


def _owner(name: str) -> str:
    """Which other distribution has brought a package of that name, in words; '' where that is not known."""
    from importlib.metadata import packages_distributions

    others = sorted(set(packages_distributions().get(name, ())) - {"gangwatch"})
    return f": the package {others[0]!r} was installed over it (`pip uninstall {others[0]}`)" if others else ""
