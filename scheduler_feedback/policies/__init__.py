"""The rules of deciding, one file each: admission, order, placement, backfill, migration, quarantine.

They are pure: each reads the state (or a turn of the cycle over it) and answers, or changes the state and says so.
"""
