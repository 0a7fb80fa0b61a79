"""Report of the place where this process is blocked: Python stacks of all threads, and the collective in progress.

``gangwatch.steps`` sends the report when the node's agent asks for it. Standard library only, Python 3.8 or newer.

The report contains names of threads, files and functions, and line numbers. It contains no values of variables and no
source text. It reads no file, because the file system may be what blocks the process. Its size is bounded.

The thread that makes the report needs Python's interpreter lock. It can report while the main thread is blocked in a C
call that has released the lock, such as a collective, a lock, a sleep or a read. If a C call holds the lock, or if the
process is stopped, no report is made, and the agent reports that the process does not answer.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Dict, List, Mapping, Optional, Tuple  # noqa: UP035 (Python 3.8)

MAX_THREADS, MAX_FRAMES = 24, 32
"""Maximum number of threads in a report, and of innermost frames of one thread."""

MAX_STACKS_CHARACTERS = 8000
"""Maximum length of the stacks as text. With the rest of the report it fits into gangwatch.steps.MAX_REPORT_BYTES."""

MAX_WORD_CHARACTERS = 160
"""Maximum length of one path, function name or thread name; only the end of a longer one is sent."""

_LIBRARIES = ("<frozen", f"{Path(os.__file__).parent}/", f"{Path(__file__).resolve().parent}/")
"""Beginnings of the paths of library code: Python's own modules and gangwatch. So are paths with site-packages."""


def blocked(collective: Optional[Mapping[str, Any]]) -> Dict[str, Any]:  # noqa: UP006, UP045
    """Return the report of this process: ``where``, ``stacks`` and ``collective``.

    collective: the collective in which the process is, with ``operation``, ``group``, ``sequence``, ``ranks`` and
    ``bytes``; None if it is in none or does not record them.
    """
    frames = sys._current_frames()
    own = threading.get_ident()
    # Not threading.enumerate(): it takes a lock, which a blocked thread may hold.
    names = {ident: thread.name for ident, thread in dict(getattr(threading, "_active", {})).items()}
    main = threading.main_thread().ident
    order = sorted((ident for ident in frames if ident != own), key=lambda ident: (ident != main, ident))
    found: Dict[str, Any] = {"where": "", "stacks": _text(frames, order, names)}  # noqa: UP006
    if main in frames:
        found["where"] = _where(frames[main])
    if collective is not None:
        found["collective"] = dict(collective)
    return found


def _text(frames: Mapping[int, FrameType], order: List[int], names: Mapping[int, str]) -> str:  # noqa: UP006
    """Return the stacks of these threads as text, the innermost frame of each first."""
    parts: List[str] = []  # noqa: UP006
    left = MAX_STACKS_CHARACTERS
    for shown, ident in enumerate(order):
        lines = [f"thread {_short(names.get(ident, str(ident)))}"]
        lines += [
            f"  {_short(code.co_filename)}:{line} in {_short(code.co_name)}" for code, line in _walk(frames[ident])
        ]
        part = "\n".join(lines)
        if shown == MAX_THREADS or len(part) > left:
            parts.append(f"{len(order) - shown} more threads"[: max(left, 0)])
            break
        parts.append(part)
        left -= len(part) + 1
    return "\n".join(parts)


def _walk(frame: Optional[FrameType]) -> List[Tuple[CodeType, int]]:  # noqa: UP006, UP045
    """Return the code and line of the innermost MAX_FRAMES frames, the innermost first."""
    found: List[Tuple[CodeType, int]] = []  # noqa: UP006
    while frame is not None and len(found) < MAX_FRAMES:
        found.append((frame.f_code, frame.f_lineno or 0))
        frame = frame.f_back
    return found


def _where(frame: FrameType) -> str:
    """Return the innermost place in the program's own code, and the library function that it called, in words."""
    places = _walk(frame)
    inner = _place(*places[0])
    own = next((place for place in places if not _is_library(place[0].co_filename)), None)
    if own is None or own is places[0]:
        return inner
    return f"{_place(*own)}, which called {inner}"


def _is_library(path: str) -> bool:
    return path.startswith(_LIBRARIES) or "site-packages" in path or "dist-packages" in path


def _place(code: CodeType, line: int) -> str:
    return f"{_short(code.co_filename.rpartition('/')[2])}:{line} in {_short(code.co_name)}"


def _short(text: str) -> str:
    shown = text if len(text) <= MAX_WORD_CHARACTERS else f"...{text[3 - MAX_WORD_CHARACTERS :]}"
    return shown if shown.isprintable() else "".join(one if one.isprintable() else "?" for one in shown)
