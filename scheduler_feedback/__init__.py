"""Detection and scheduling: telemetry becomes verdicts, and verdicts decide where jobs run.

Start at ``cycle.py``, one pass of the scheduler. ``core/`` has the data, ``detectors/`` and ``policies/`` the rules,
``feed/`` and ``backends/`` the connections to agents and clusters, ``journal/`` the store, ``controller/`` the threads
that run all of it, ``api/`` its HTTP interface, and ``sim/`` the same cycle with a virtual clock.
"""

PART_OF = "gangwatch"
