"""Accuracy of our detectors and of published rules on training jobs: ``python -m benchmarks.detection``.

Jobs run in the simulated world (scheduler_feedback/sim/world), whose physics shares no rule with any of the methods;
all methods get the same telemetry in the same run.
__main__.py describes the runs, score.py how verdicts are scored.
"""
