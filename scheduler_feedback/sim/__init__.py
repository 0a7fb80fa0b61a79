"""Simulation: the production cycle with a virtual clock, jobs from a trace, and scheduled faults.

Start at ``simulation.py``, which assembles a run; ``engine.py`` is the virtual clock. Input: ``job_trace.py`` and
``traces/``, ``simulated_nodes.py``, ``faults.py``. Ground truth: ``truth.py``. Output: ``results.py``, ``table.py``,
``page.py``, ``simulated_journal.py``. ``speeds/`` has the speeds of simulated jobs, ``studies/`` has studies beside the
simulation. ``world/`` simulates the telemetry of jobs, for tests of detectors.
"""
