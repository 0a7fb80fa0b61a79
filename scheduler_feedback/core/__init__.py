"""Data types and their invariants. Pure: no clock, no socket, no file.

Start at ``state.py``, what the scheduler knows, then ``job.py``, ``cluster.py``, ``events.py`` (inputs of a cycle) and
``actions.py`` (its decisions). ``verdict.py`` is what a detector reports; ``telemetry/`` is what it reads.
"""
