"""Support bundles, redaction of secrets, and the log files of ranks.

Start at ``bundle.py``.
"""
