"""Which pending gang starts next, and where: order, placement, backfill, preemption.

Start at ``starting.py``; ``waiting_reasons.py`` explains why a job waits.
"""
