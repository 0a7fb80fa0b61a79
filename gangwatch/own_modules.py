"""Import guard: gangwatch's packages are loaded from the folder of this package, never a foreign module `agent`.

Some packages have common names, which a file in the current folder or another distribution may also have. This
module runs first and imports only the standard library.
"""

from __future__ import annotations

import os
import sys

PACKAGES = ("agent", "exporter", "scheduler_feedback", "dashboards")

MARK = b'PART_OF = "gangwatch"'
"""A package counts as one of gangwatch's only if its `__init__.py` contains this line."""

INSTALL = "install gangwatch again in a separate environment, with `pipx install --force` or `uv tool install --force`"


class ForeignModuleError(Exception):
    """A package of gangwatch is missing, or another package replaces it. The message names the path and the remedy."""


def guard() -> None:
    """Remove the current folder from the import path and load gangwatch's packages from the folder of this package.

    The current folder is not removed if it is a checkout with this program. Raises ForeignModuleError.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    _leave_current_folder(home)
    for name in PACKAGES:
        _load(name, home)


def _leave_current_folder(home: str) -> None:
    """Remove the current folder from the import path. `python -m` and relative entries of PYTHONPATH add it."""
    try:
        here = os.getcwd()
    except OSError:
        return  # the folder was removed: nothing can be imported from it
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
        raise ForeignModuleError(
            f"{folder} is missing: the installation of gangwatch is incomplete; {INSTALL}"
        ) from None
    if not ours:
        raise ForeignModuleError(f"{file} does not belong to gangwatch{_owner(name)}; {INSTALL}")
    if name not in sys.modules:
        # Only during this import, of a package that imports nothing: packages in this folder must not hide the
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
    """Return a description of the distribution that installed this package; '' if unknown."""
    from importlib.metadata import packages_distributions

    others = sorted(set(packages_distributions().get(name, ())) - {"gangwatch"})
    return f": the package {others[0]!r} was installed over it (`pip uninstall {others[0]}`)" if others else ""
