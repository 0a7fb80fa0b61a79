"""Scheduling policies, one module each: admission, order, placement, backfill, migration, quarantine.

Policies are pure: they read the state and the cycle context, return a result, or change the state and log the change.
"""
