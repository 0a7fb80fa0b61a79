"""Data types and their invariants. Pure: no clock, no socket, no file.

Start at ``state.py`` (the scheduler's state). Then read ``job.py``, ``cluster.py``, ``events.py`` (inputs of a cycle)
and ``actions.py`` (its decisions). ``verdict.py`` has the detectors' output; ``telemetry/`` has their input.
"""
