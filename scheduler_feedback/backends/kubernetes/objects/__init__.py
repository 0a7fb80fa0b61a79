"""Kubernetes objects and their translation into jobs, nodes and queues.

Start at ``translate.py``.
"""
