"""The checks behind ``gangwatch check``.

Start at ``machine.py``.
"""
