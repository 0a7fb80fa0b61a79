"""The interference detector: which job slows another job down.

Start at ``interference.py``.
"""
