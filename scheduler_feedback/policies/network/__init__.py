"""Gangs on shared uplinks: their speeds, and time shifts of their steps. Start at ``time_shifts.py``."""
