"""Values derived from the state and kept up to date: held slots, queue shares, run-time estimates, timeouts.

Start at ``scheduling_index.py``.
"""
