"""Reported step times: alignment into windows, the healthy baseline, and the expected work of a step.

Start at ``windows.py``.
"""
