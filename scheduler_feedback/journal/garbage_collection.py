"""Collecting: how often Python looks for circles of objects while a trace or a journal is worked through."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

COLLECT_AFTER = 50_000
"""New objects after which Python looks for circles among them; its own default is 700."""


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Much is made that stays, and few circles: to look for them as often as usual is a tenth of the time."""
    usual = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()
