"""Policies for the use of nodes: quarantine, draining, and spare nodes.

Start at ``quarantine.py``.
"""
