"""Full garbage collections of a controller examine few objects."""

from __future__ import annotations

import gc
import weakref

from gangwatch.daemons.process_limits import ALL_OBJECTS_SECONDS, ShortCollections


class Loop:
    """An object in a cycle, which only a garbage collection frees."""

    def __init__(self) -> None:
        self.own = self


def test_a_full_collection_leaves_out_older_objects_until_an_hour_has_passed() -> None:
    now = [0.0]
    collections = ShortCollections(lambda: now[0])
    collections.start()
    try:
        older = Loop()
        older_is_alive = weakref.ref(older)
        gc.collect()
        assert gc.get_freeze_count() > 0
        del older
        newer_is_alive = weakref.ref(Loop())
        gc.collect()
        assert newer_is_alive() is None, "it was made after the last full collection"
        assert older_is_alive() is not None
        now[0] = ALL_OBJECTS_SECONDS
        gc.collect()
        assert older_is_alive() is None
    finally:
        collections.stop()
    assert gc.get_freeze_count() == 0
