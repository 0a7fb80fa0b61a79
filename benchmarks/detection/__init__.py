"""Accuracy of our detectors and of published rules on training jobs: ``python -m benchmarks.detection``.

Jobs run in a simulated cluster (scheduler_feedback/sim/world), whose model shares no rule with any detection method.
All methods get the same telemetry in the same run. __main__.py describes the runs, score.py how verdicts are scored.
"""
