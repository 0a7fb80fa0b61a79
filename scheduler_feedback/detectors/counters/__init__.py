"""Hardware and process counters of ranks, compared with peers and with their own past.

Start at ``counter_statistics.py``.
"""
