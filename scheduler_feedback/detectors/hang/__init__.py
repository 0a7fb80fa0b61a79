"""The hang detector: finds jobs that make no steps, and the ranks that block them.

Start at ``hang.py``.
"""
