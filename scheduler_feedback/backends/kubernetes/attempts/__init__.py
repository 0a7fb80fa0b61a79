"""Attempts of gangs on Kubernetes: binding, stopping, and probes.

Start at ``attempt_lifecycle.py``.
"""
