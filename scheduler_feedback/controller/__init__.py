"""The controller: the cycle thread, the detection thread, and their connections.

Start at ``composition.py``, which builds a controller of any backend, and ``controller.py``.
"""
