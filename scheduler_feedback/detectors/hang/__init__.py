"""The hang detector: which job makes no steps, and which ranks block it.

Start at ``hang.py``.
"""
