"""Reported step times: windows of aligned steps, the healthy baseline, and the expected work of a step.

Start at ``windows.py``.
"""
