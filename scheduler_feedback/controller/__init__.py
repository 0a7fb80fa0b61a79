"""The controller: the cycle thread, the detection thread, and what connects them.

Start at ``controller.py``.
"""
