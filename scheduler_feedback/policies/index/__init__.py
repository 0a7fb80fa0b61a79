"""Values derived from the state and kept up to date: free and held slots, the queue, run-time estimates, timeouts.

Start at ``scheduling_index.py``: its methods are the only ones that change jobs, nodes and verdicts. It builds on
``tracked_jobs.py`` (queue, groups, timeouts of single jobs) and ``held_slots.py`` (slots, expected ends).
"""
