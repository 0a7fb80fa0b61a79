"""Access to the Kubernetes API server: client, watches, the informer cache, and the leader lease.

Start at ``client.py``.
"""
