"""What the controller writes on Kubernetes objects, and its removal.

Start at ``publish.py``.
"""
