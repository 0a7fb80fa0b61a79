"""The local backend: jobs as processes of this machine.

Start at ``local_backend.py``; ``shim.py`` runs the ranks of one node.
"""
