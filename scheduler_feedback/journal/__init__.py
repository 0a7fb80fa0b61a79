"""The journal: every cycle's events, decisions and sentences in one SQLite file.

Start at ``store.py``, which writes; ``store_reading.py`` reads, and ``stored_rows.py`` decodes. ``store_schema.py`` and
``format_needs.py`` decide which release can open a file. ``recovery.py`` restores the state after a restart,
``replay.py`` repeats decisions, ``retention.py`` deletes and packs old cycles, ``backup.py`` copies the file.
"""
