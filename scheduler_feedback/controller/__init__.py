"""The controller: the cycle thread, the detection thread, and their connections.

Start at ``controller.py``.
"""
