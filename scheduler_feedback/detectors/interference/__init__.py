"""The interference detector: finds the job that slows another job down.

Start at ``interference.py``.
"""
