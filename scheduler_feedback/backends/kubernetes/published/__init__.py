"""What the controller writes on Kubernetes objects, and how it is removed again.

Start at ``publish.py``.
"""
