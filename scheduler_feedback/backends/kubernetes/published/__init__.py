"""Data that the controller writes on Kubernetes objects, and the removal of that data.

Start at ``publish.py``.
"""
