"""`gangwatch demo`: on this machine, gangwatch detects a real straggler, moves the job and backfills its slots.

Start at ``command.py``. ``play.py`` has the jobs, and ``conductor.py`` runs them. ``disturbance.py`` slows a rank,
``listener.py`` reads the ranks' steps, ``screen.py`` shows the cluster, ``account.py`` and ``report.py`` compute the
report.
"""
