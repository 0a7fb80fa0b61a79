"""`gangwatch demo`: on this machine, gangwatch detects a real straggler, moves the job and backfills its slots.

Start at ``command.py``; ``play.py`` has the jobs and ``conductor.py`` runs them. ``disturbance.py`` slows a rank,
``listener.py`` reads its steps, ``screen.py`` shows them, ``account.py`` and ``report.py`` compute the figures.
"""
