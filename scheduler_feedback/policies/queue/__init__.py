"""Policies for the start of pending gangs: order, placement, backfill, preemption.

Start at ``starting.py``; ``waiting_reasons.py`` explains why a job waits.
"""
