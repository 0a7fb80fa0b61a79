"""Which nodes may be used: quarantine, draining, and spare nodes.

Start at ``quarantine.py``.
"""
