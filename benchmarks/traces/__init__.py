"""Synthetic step traces, and the evaluation of `gangwatch detect` on them.

This package shares no code with ``scheduler_feedback.sim``. ``model.py`` computes the length of a step from the
ranks' own times, which ``workloads.py`` and ``faults.py`` change. ``trace_file.py`` writes a trace and its true
fault, ``score.py`` compares verdicts with the fault, and ``figures.py`` computes the tables.
"""
