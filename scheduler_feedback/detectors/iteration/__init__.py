"""Iteration times of jobs that report no steps, estimated from counters.

Start at ``job_slowdown.py``.
"""
