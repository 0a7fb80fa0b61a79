"""The journal: SQLite store, retention, recovery, replay and backup.

Start at ``store.py``.
"""
