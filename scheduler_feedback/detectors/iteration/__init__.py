"""Iteration times of jobs that report no steps, estimated from the traffic counters of their ranks.

Start at ``job_slowdown.py``.
"""
